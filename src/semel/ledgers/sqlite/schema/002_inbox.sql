-- The inbox, and what people decide about letters. What is wide and written once (the event) stands beside what is
-- narrow and written at every step. Ids are taken from the counter of tokens: no number is ever given twice, so the id of
-- a letter can become the id of its record, and whoever holds an old one holds nobody's.

create table semel_inbox (
    id       integer primary key,
    k        blob not null,         -- what it is known by: the digest of its claim, or one over those of all its claims
    keys     blob,                  -- all its keys, one after the other; null: only k
    lane     text not null,
    token    integer not null,      -- its taker's; in the WHERE of every later write. 0: nobody has taken it yet
    state    integer not null,      -- 1 waiting, 2 taken
    due      integer not null,      -- when it may be taken (ms): its time comes, or its taker's lease lapses
    lapses   integer not null,      -- takers that vanished
    accepted integer not null,      -- ms
    keep     integer not null,      -- retention (ms), once it is given up
    tenant   text not null,
    only_handler text not null,     -- the one handler of its lane that it is for; '': all of them
    text     text not null,         -- the key, for people
    reason   text                   -- why it was put off the last time; null: it was not
) strict;
create index semel_inbox_due on semel_inbox (lane, due, state, accepted);   -- take reads its start, depths all of it

create table semel_inbox_event (
    id       integer primary key,   -- semel_inbox.id
    event    blob not null,
    reading  blob,                  -- how it has to be read; null: plainly
    trace    text                   -- W3C traceparent; null: none
) strict;

create table semel_inbox_key (
    k        blob not null,         -- of a claim, of an alias, or semel_inbox.k
    id       integer not null,      -- semel_inbox.id; once it is given up, semel_record.id
    fp       blob,                  -- fingerprint of the payload; null: not compared
    place    blob,                  -- subject and position of an ordered claim: only the same place is the same event
    primary key (k, id)
) without rowid, strict;

create table semel_decision (
    rec        integer primary key, -- semel_record.id
    k          blob not null,
    what       integer not null,    -- 1 replayed, 2 discarded
    generation integer not null,    -- the one that it ended
    token      integer not null,    -- the newest at that time: what has a higher one is of a later generation
    at         integer not null,    -- ms
    reason     text not null,
    by         text not null
) strict;
create index semel_decision_keys on semel_decision (k);

alter table semel_lease add column owner blob;       -- the key whose alias this one is; null: a claim's own key
alter table semel_lease add column reason text;      -- why it waits for its next attempt
alter table semel_letter add column reading blob;
alter table semel_letter add column lane text;       -- of a letter that the inbox gave up; null: its handler's
alter table semel_letter add column only_handler text;
alter table semel_record add column decided integer; -- when a person decided about it (ms)

drop index semel_record_letters;
create index semel_record_letters on semel_record (outcome, decided, at) where outcome <> 1 and decided is null;
create index semel_record_letter_keys on semel_record (k) where outcome <> 1;   -- letters are few
