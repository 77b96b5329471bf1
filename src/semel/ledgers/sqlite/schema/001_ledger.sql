-- Tables begin with semel_ because handlers keep their own tables in the same file.
-- The hot part is small: `semel_lease` holds only keys that are being worked on or wait for a retry. What is settled is
-- appended to `semel_record` in order of time (cheap at any size), and found again through `semel_done`, 30 bytes a key.

create table semel_meta (
    name  text primary key,
    value any
) without rowid, strict;

create table semel_lease (
    k        blob primary key not null,   -- 16-byte digest of tenant, handler, key
    token    integer not null,      -- the current grant; in the WHERE of every later write
    state    integer not null,      -- 1 leased, 2 waiting for a retry
    until    integer not null,      -- end of the lease, or when the retry is due (ms)
    attempts integer not null,
    first    integer not null,      -- the first grant (ms)
    suspect  integer not null,      -- a holder before this one vanished
    fp       blob,                  -- fingerprint of the payload; null: not compared
    keep     integer not null,      -- retention (ms)
    tenant   text not null,
    handler  text not null,
    text     text not null          -- the key, for people
) strict;   -- rows in order of arrival beside an index of keys: rows this wide move less than in one tree

create table semel_record (
    id       integer primary key,   -- the token it was settled under
    k        blob not null,
    aliases  blob,                  -- digests of its other keys, one after the other
    outcome  integer not null,      -- 1 done, 2 dead, 3 uncertain
    result   blob,                  -- JSON of the result, or the reason; null: JSON null
    fp       blob,
    attempts integer not null,
    at       integer not null,      -- when it was settled (ms)
    expires  integer not null,      -- end of the retention (ms)
    tenant   text not null,
    handler  text not null,
    text     text not null
) strict;
create index semel_record_letters on semel_record (outcome) where outcome <> 1;   -- letters are few

create table semel_done (
    k        blob primary key,
    rec      integer not null,      -- semel_record.id
    expires  integer not null       -- end of the retention (ms); an alias has its own
) without rowid, strict;

create table semel_subject (
    k        blob primary key,      -- digest of tenant, handler, subject
    newest   integer,               -- position of the newest applied event
    holder   blob,                  -- the key that is acting on the subject
    token    integer not null,
    until    integer not null       -- when it may be forgotten (ms)
) without rowid, strict;

create table semel_letter (
    id       integer primary key,   -- record.id
    event    blob not null          -- the document as it arrived
) strict;

insert into semel_meta values ('token', 0), ('swept', 0);   -- swept: the record where the last purge stopped
