-- The outbox. `semel_notification` is the truth about every message and grows; `semel_dispatch` holds only what the relay
-- still has something to do with, so that taking costs the same however much was sent before. `semel_attempt` is the
-- evidence, and `semel_guard` has a life of its own: it outlives the messages that it was made for.

create table semel_notification (
    id         blob primary key not null,   -- 16-byte digest of tenant, key, kind, recipient, channel, generation
    tenant     text not null,
    key        text not null,         -- the caller's business key
    kind       text not null,
    recipient  text not null,         -- '': erased
    who        blob not null,         -- digest of tenant and recipient: stays when the recipient is erased
    channel    text not null,
    generation integer not null,
    content    blob,                  -- JSON; null: erased
    fp         blob not null,         -- digest of the content
    options    blob not null,         -- JSON: order, priority, not_after, guard, provider, policy
    state      text not null,
    reason     text not null,
    provider   text not null,
    reference  text,                  -- the provider's own id
    by_id      blob,                  -- what suppressed it
    possible   integer not null,      -- possible duplicates
    added      integer not null,      -- ms
    changed    integer not null       -- ms
) strict;
create index semel_notification_who on semel_notification (who, kind, added);
create index semel_notification_key on semel_notification (tenant, key, added);
create index semel_notification_reference on semel_notification (reference, provider) where reference is not null;
create index semel_notification_over on semel_notification (state, changed)
    where state in ('failed', 'undelivered', 'suppressed', 'expired', 'cancelled');

create table semel_dispatch (
    id       blob primary key not null,
    lane     text not null,           -- a provider, or @channel
    priority integer not null,
    due      integer,                 -- when a relay has something to do, or when its lease lapses (ms); null: never
    token    integer not null,        -- its taker's; in the WHERE of every later write
    taken    integer not null,        -- 1: in somebody's hands
    state    text not null,           -- pending, sending, uncertain
    standing blob not null,           -- JSON of all that is known
    request  blob,                    -- of its first crossing to this provider
    ordered  blob,                    -- digest of tenant and order key; null: in no order
    place    integer not null         -- in the order of arrival
) strict;
create index semel_dispatch_due on semel_dispatch (lane, priority, due) where due is not null;
create index semel_dispatch_order on semel_dispatch (ordered, place) where ordered is not null;
create index semel_dispatch_state on semel_dispatch (state);

create table semel_attempt (
    id        blob not null,
    token     integer not null,       -- of the dispatch, or of the decision; 0: a provider's own word
    outcome   text not null,          -- '': it has crossed, and nobody has said what came of it
    number    integer not null,
    provider  text not null,
    crossed   integer not null,       -- ms; 0: nothing left
    ended     integer not null,       -- ms; 0: nobody has said
    evidence  text not null,
    reference text,
    by        text not null,          -- the person, where one decided
    primary key (id, token, outcome)
) without rowid, strict;

create table semel_guard (
    k        blob primary key not null,   -- what is watched
    id       blob not null,           -- the newest that passed
    at       integer not null,        -- when it did (ms)
    until    integer not null         -- when nobody asks any more (ms)
) without rowid, strict;

create table semel_rate (
    provider text not null,
    tenant   text not null,
    next     real not null,           -- when the next one may go (ms)
    primary key (provider, tenant)
) without rowid, strict;
