-- The first schema that is released. Versions 1 to 6 were never released, and files of them are refused.
-- Table names start with semel_ because handlers may keep their own tables in the same file.
-- Times are milliseconds since the epoch and end in _ms. A digest has 16 bytes.

create table semel_meta (
    name  text primary key,
    value any
) without rowid, strict;

-- Tokens, inbox ids and sequences come from one counter, so no number is issued twice. `purge_position` is the id of the
-- record at which the last purge stopped.
insert into semel_meta values ('token', 0), ('purge_position', 0);

-- ------------------------------------------------------------------------------------------------------------ ledger

-- Leased keys and keys that wait for a retry. The table stays small. It has a rowid and a separate index of digests:
-- rows of this width are cheaper to move that way than in one tree.
create table semel_lease (
    digest           blob primary key not null,   -- of tenant, handler and key
    token            integer not null,            -- of the current grant; in the WHERE of every later write
    state            integer not null,            -- 1 leased, 2 waiting for a retry
    until_ms         integer not null,            -- end of the lease, or the time of the retry
    attempts         integer not null,
    first_granted_ms integer not null,
    suspect          integer not null,            -- 1: an earlier holder vanished
    fingerprint      blob,                        -- of the payload; null: payloads are not compared
    retention_ms     integer not null,
    tenant           text not null,
    handler          text not null,
    key_text         text not null,
    alias_of         blob,                        -- digest of the claim's own key; null: this is it
    reason           text,                        -- why the key waits for a retry
    attempt_log      blob                         -- failed attempts, see semel.values.attempts
) strict;

-- Settled keys in the order of their tokens: appending costs the same at any size. `semel_done` finds them by digest.
create table semel_record (
    id           integer primary key,   -- the token of the lease
    digest       blob not null,
    aliases      blob,                  -- digests of its other keys, one after the other
    outcome      integer not null,      -- 1 done, 2 dead, 3 uncertain
    result       blob,                  -- JSON of the result, or the reason; null: JSON null
    fingerprint  blob,
    attempts     integer not null,
    settled_ms   integer not null,
    expires_ms   integer not null,      -- end of the longest retention of its keys
    tenant       text not null,
    handler      text not null,
    key_text     text not null,
    decided_ms   integer,               -- time of an operator's decision
    origin_token integer                -- token in the other ledger that this dead letter belongs to; null: this ledger
) strict;
create index semel_record_undecided on semel_record (outcome, decided_ms, settled_ms)
    where outcome <> 1 and decided_ms is null;
create index semel_record_dead_letters on semel_record (digest) where outcome <> 1;

create table semel_done (
    digest     blob primary key,
    record_id  integer not null,
    expires_ms integer not null         -- an alias has its own retention
) without rowid, strict;

create table semel_attempt_log (
    id          integer primary key,    -- semel_record.id
    attempt_log blob not null
) strict;

create table semel_subject (
    digest   blob primary key,          -- of tenant, handler and subject
    newest   integer,                   -- position of the newest applied event
    holder   blob,                      -- digest of the key that is leased for this subject
    token    integer not null,
    until_ms integer not null           -- end of the retention
) without rowid, strict;

create table semel_dead_letter (
    id             integer primary key,   -- semel_record.id
    event          blob not null,
    decode_options blob,                  -- null: the defaults
    lane           text,                  -- of an inbox item that was given up; null: a handler gave it up
    only_handler   text
) strict;

create table semel_decision (
    record_id  integer primary key,
    digest     blob not null,
    decision   integer not null,        -- 1 replayed, 2 discarded
    generation integer not null,        -- the generation that it ended
    token      integer not null,        -- the newest token at that time: higher tokens belong to later generations
    decided_ms integer not null,
    reason     text not null,
    decided_by text not null
) strict;
create index semel_decision_digest on semel_decision (digest);

-- ------------------------------------------------------------------------------------------------------------- inbox

-- Narrow rows that every step updates. The event, which is wide and written once, is in semel_inbox_event.
create table semel_inbox (
    id             integer primary key,   -- becomes the id of its record if it is given up
    digest         blob not null,         -- key of its only claim, or a digest over the keys of all its claims
    digests        blob,                  -- all its keys, one after the other; null: only `digest`
    lane           text not null,
    token          integer not null,      -- of the worker that took it; in the WHERE of every later write. 0: none yet
    state          integer not null,      -- 1 waiting, 2 taken
    due_ms         integer not null,      -- when it may be taken, or when the lease of its worker expires
    expired_leases integer not null,      -- workers that vanished in a row
    accepted_ms    integer not null,
    retention_ms   integer not null,      -- of its dead letter
    tenant         text not null,
    only_handler   text not null,         -- the handler of a replay; '': all handlers of the lane
    key_text       text not null,
    reason         text                   -- why it was postponed
) strict;
create index semel_inbox_due on semel_inbox (lane, due_ms, state, accepted_ms);

create table semel_inbox_event (
    id             integer primary key,
    event          blob not null,
    decode_options blob,                  -- null: the defaults
    traceparent    text                   -- W3C trace context
) strict;

create table semel_inbox_key (
    digest         blob not null,         -- of a claim or an alias, or semel_inbox.digest
    id             integer not null,      -- semel_inbox.id, or semel_record.id after the item was given up
    fingerprint    blob,
    order_position blob,                  -- subject and position of an ordered claim
    primary key (digest, id)
) without rowid, strict;

-- ------------------------------------------------------------------------------------------------------------ outbox

-- Every message. The table grows, and the purge erases it by age.
create table semel_notification (
    id                  blob primary key not null,   -- digest of tenant, key, kind, recipient, channel, generation
    tenant              text not null,
    key                 text not null,               -- the business key
    kind                text not null,
    recipient           text not null,               -- '': erased
    recipient_digest    blob not null,               -- of tenant and recipient; stays when the recipient is erased
    channel             text not null,
    generation          integer not null,
    content             blob,                        -- JSON; null: erased
    fingerprint         blob not null,               -- digest of the content; empty: erased
    options             blob not null,               -- JSON: order, priority, not_after, guard, provider, policy
    state               text not null,
    reason              text not null,
    provider            text not null,
    reference           text,                        -- the provider's newest id of the message
    suppressed_by       blob,                        -- id of the notification that its guard let through
    possible_duplicates integer not null,
    added_ms            integer not null,
    changed_ms          integer not null
) strict;
create index semel_notification_recipient on semel_notification (recipient_digest, kind, added_ms);
create index semel_notification_key on semel_notification (tenant, key, added_ms);
create index semel_notification_added on semel_notification (added_ms);
create index semel_notification_duplicates on semel_notification (added_ms) where possible_duplicates > 0;
-- SQLite uses a partial index only if the query repeats its condition word for word.
create index semel_notification_ended on semel_notification (state, added_ms)
    where state in ('failed', 'undelivered', 'suppressed', 'expired', 'cancelled');
create index semel_notification_content on semel_notification (changed_ms)
    where content is not null and state not in ('pending', 'sending', 'uncertain');
create index semel_notification_erased on semel_notification (changed_ms) where content is null;

-- Messages that a relay still has to process, so that a take costs the same however many were sent before.
create table semel_dispatch (
    id             blob primary key not null,   -- semel_notification.id
    tenant         text not null,
    lane           text not null,               -- a provider, or @channel
    priority       integer not null,
    due_ms         integer,                     -- when a relay may take it, or when its lease expires; null: never
    blocked_due_ms integer,                     -- `due_ms` while an older message of its order key blocks it
    token          integer not null,            -- of the relay that took it; in the WHERE of every later write
    taken          integer not null,            -- 1: a relay has it
    state          text not null,               -- pending, sending or uncertain
    delivery_state blob not null,               -- JSON, see semel.values.delivery_state
    request        blob,                        -- of its first crossing to this provider
    order_digest   blob,                        -- of tenant and order key; null: not ordered
    sequence       integer not null             -- grows in the order of arrival
) strict;
create index semel_dispatch_due on semel_dispatch (lane, priority, due_ms, sequence) where due_ms is not null;
-- Tenants share the rate of a provider. A take skips a tenant without free slots, with everything that it has waiting.
create index semel_dispatch_tenant on semel_dispatch (lane, tenant, priority, due_ms, sequence) where due_ms is not null;
create index semel_dispatch_order on semel_dispatch (order_digest, sequence) where order_digest is not null;
create index semel_dispatch_state on semel_dispatch (state, lane, sequence);   -- for the backlog

-- When a message ends, for whatever reason, the next one of its order key becomes due.
create trigger semel_release_next_in_order after delete on semel_dispatch when old.order_digest is not null
begin
    update semel_dispatch set due_ms = blocked_due_ms, blocked_due_ms = null
    where blocked_due_ms is not null
          and id = (select id from semel_dispatch where order_digest = old.order_digest order by sequence limit 1);
end;

-- Inserts a notification and its dispatch by one statement.
create view semel_new_notification as
select n.id, n.tenant, n.key, n.kind, n.recipient, n.recipient_digest, n.channel, n.generation, n.content, n.fingerprint,
       n.options, n.added_ms, d.lane, d.priority, d.delivery_state, d.order_digest
from semel_notification n join semel_dispatch d on d.id = n.id;

create trigger semel_add_notification instead of insert on semel_new_notification
begin
    update semel_meta set value = value + 1 where name = 'token';
    insert into semel_notification (id, tenant, key, kind, recipient, recipient_digest, channel, generation, content,
                                    fingerprint, options, state, reason, provider, possible_duplicates, added_ms, changed_ms)
    values (new.id, new.tenant, new.key, new.kind, new.recipient, new.recipient_digest, new.channel, new.generation,
            new.content, new.fingerprint, new.options, 'pending', '', '', 0, new.added_ms, new.added_ms);
    insert into semel_dispatch (id, tenant, lane, priority, due_ms, token, taken, state, delivery_state, order_digest, sequence)
    select new.id, new.tenant, new.lane, new.priority, new.added_ms, 0, 0, 'pending', new.delivery_state, new.order_digest,
           value
    from semel_meta where name = 'token';
end;

create table semel_attempt (
    id         blob not null,          -- semel_notification.id
    token      integer not null,       -- of the dispatch or the decision; 0: a delivery report
    outcome    text not null,          -- '': it has crossed, and its outcome is not known yet
    number     integer not null,
    provider   text not null,
    crossed_ms integer not null,       -- 0: nothing was sent
    ended_ms   integer not null,       -- 0: not known
    evidence   text not null,
    reference  text,
    decided_by text not null,          -- the operator of a decision
    primary key (id, token, outcome)
) without rowid, strict;
-- A message is found by every reference that its provider ever gave it, not only by the newest.
create index semel_attempt_reference on semel_attempt (reference, provider) where reference is not null;

-- Guards outlive the notifications that passed them.
create table semel_guard (
    digest    blob primary key not null,   -- of the guarded tenant, recipient and kind
    id        blob not null,               -- of the notification that passed last
    passed_ms integer not null,
    until_ms  integer not null,            -- end of the window
    earlier   blob                         -- JSON: ids and times of earlier passes, newest first; null: none
) without rowid, strict;
create index semel_guard_until on semel_guard (until_ms);

create table semel_rate (
    provider text not null,
    tenant   text not null,
    next_ms  real not null,                -- time of the next free slot
    primary key (provider, tenant)
) without rowid, strict;
