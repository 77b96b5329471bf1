-- Everything stands in a schema of its own. Here it is written `semel.`; `schema=` in the URL gives it another name.
-- One row says all that is known of a key, from its first grant to the end of its retention: a claim inserts it, the
-- settle updates it in place (HOT: no index holds a column that a settle writes, and pages keep room for it). Letters
-- are few, and have a table of their own, so that they outlive the row that answers for their key.

create sequence semel.token;   -- tokens, ids of letters and of the inbox: no number is ever given twice

create table semel.key (
    token    bigint not null,
    until    bigint not null,
    first    bigint not null,
    keep     bigint not null,
    attempts integer not null,
    state    smallint not null,
    outcome  smallint not null default 0,
    suspect  boolean not null,
    k        bytea not null,
    fp       bytea,
    owner    bytea,
    result   bytea,
    tenant   text not null,
    handler  text not null,
    text     text not null,
    primary key (k)
) with (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index key_token on semel.key (token) with (fillfactor = 100);   -- in order of grants; appended, never split

-- For listing what is leased or waits, of which there is little among millions of settled keys. An index that keeps
-- summaries of pages does not stand in the way of HOT since PostgreSQL 16; before, the list reads the whole table.
do $$ begin
    if current_setting('server_version_num')::integer >= 160000 then
        create index key_state on semel.key using brin (state) with (pages_per_range = 32);
    end if;
end $$;

comment on column semel.key.k is '16-byte digest of tenant, handler, key';
comment on column semel.key.token is 'the current grant; in the WHERE of every later write. 0: nobody''s';
comment on column semel.key.state is '1 leased, 2 waiting for a retry, 3 settled';
comment on column semel.key.until is 'end of the lease, when the retry is due, or end of the retention (ms)';
comment on column semel.key.first is 'the first grant (ms)';
comment on column semel.key.keep is 'retention (ms): of what is settled, until - keep is when it was settled';
comment on column semel.key.outcome is '0 none yet, 1 done, 2 dead, 3 uncertain';
comment on column semel.key.suspect is 'a holder before this one vanished';
comment on column semel.key.fp is 'fingerprint of the payload; null: not compared';
comment on column semel.key.owner is 'the key whose alias this one is; null: a claim''s own key';
comment on column semel.key.result is 'JSON of the result (null: JSON null), the reason of an end, or why it waits (UTF-8)';
comment on column semel.key.text is 'the key, for people';

create table semel.subject (
    k        bytea primary key,
    newest   bigint,
    holder   bytea,
    token    bigint not null,
    until    bigint not null
) with (fillfactor = 70);

comment on column semel.subject.k is 'digest of tenant, handler, subject';
comment on column semel.subject.newest is 'position of the newest applied event';
comment on column semel.subject.holder is 'the key that is acting on the subject';
comment on column semel.subject.token is 'the grant of that key';
comment on column semel.subject.until is 'when it may be forgotten (ms)';

create table semel.letter (
    id       bigint primary key,
    k        bytea not null,
    aliases  bytea,
    outcome  smallint not null,
    reason   text not null,
    fp       bytea,
    attempts integer not null,
    at       bigint not null,
    expires  bigint not null,
    decided  bigint,
    tenant   text not null,
    handler  text not null,
    text     text not null,
    event    bytea,
    reading  bytea,
    lane     text,
    only_handler text
);
create index letter_undecided on semel.letter (outcome, at, id) where decided is null;
create index letter_decided on semel.letter (decided) where decided is not null;
create index letter_k on semel.letter (k);

comment on column semel.letter.id is 'the token it was settled under, or the id that it had in the inbox';
comment on column semel.letter.aliases is 'digests of its other keys, one after the other; all its keys, where the inbox gave it up';
comment on column semel.letter.outcome is '2 dead, 3 uncertain';
comment on column semel.letter.at is 'when it was settled (ms)';
comment on column semel.letter.expires is 'end of the longest retention of its keys (ms)';
comment on column semel.letter.decided is 'when a person decided about it (ms)';
comment on column semel.letter.event is 'the document as it arrived; null: not kept';
comment on column semel.letter.reading is 'how it has to be read; null: plainly';
comment on column semel.letter.lane is 'of a letter that the inbox gave up; null: its handler''s';
comment on column semel.letter.only_handler is 'the one handler of its lane that it was for; '''': all of them';

create table semel.decision (
    rec        bigint primary key,
    k          bytea not null,
    what       smallint not null,
    generation integer not null,
    token      bigint not null,
    at         bigint not null,
    reason     text not null,
    by         text not null
);
create index decision_k on semel.decision (k);

comment on column semel.decision.rec is 'semel.letter.id';
comment on column semel.decision.what is '1 replayed, 2 discarded';
comment on column semel.decision.generation is 'the one that it ended';
comment on column semel.decision.token is 'the newest at that time: what has a higher one is of a later generation';

create table semel.meta (
    name  text primary key,
    value bigint,
    place bytea
) with (fillfactor = 50);
insert into semel.meta values ('swept', -1, ''::bytea);   -- the token and the subject where the last purge stopped
