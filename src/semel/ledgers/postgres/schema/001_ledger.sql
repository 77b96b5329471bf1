-- The ledger. All objects are in one schema. The files name it `semel`; `schema=` in the URL replaces that name.
--
-- One row holds the whole state of a key, from its first grant to the end of its retention. A claim inserts it, and the
-- settle updates it in place. That update is HOT: no index contains a column that a settle writes, and pages keep free
-- space for it. Dead letters are few. They have a table of their own, because they outlive the row of their key.

create sequence semel.token;   -- tokens, ids of dead letters and of inbox items: no number is used twice

create function semel.now_ms() returns bigint language sql volatile
as $$ select floor(extract(epoch from clock_timestamp()) * 1000)::bigint $$;

create table semel.key (
    token            bigint not null,
    until_ms         bigint not null,
    first_granted_ms bigint not null,
    retention_ms     bigint not null,
    attempts         integer not null,
    state            smallint not null,
    outcome          smallint not null default 0,
    suspect          boolean not null,
    digest           bytea not null,
    fingerprint      bytea,
    alias_of         bytea,
    result           bytea,
    tenant           text not null,
    handler          text not null,
    key_text         text not null,
    attempt_log      bytea,
    primary key (digest)
) with (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index key_token on semel.key (token) with (fillfactor = 100);   -- in order of grants: appended, never split
create index key_alias on semel.key (token) where alias_of is not null;   -- counts aliases; a settle does not write it

-- Finds the leased and waiting keys among millions of settled ones. Since PostgreSQL 16 an update of a column in a BRIN
-- index can be HOT. Before that version there is no such index, and the listing reads the whole table.
do $$ begin
    if current_setting('server_version_num')::integer >= 160000 then
        create index key_state on semel.key using brin (state) with (pages_per_range = 32);
    end if;
end $$;

comment on column semel.key.digest is '16-byte digest of tenant, handler, key';
comment on column semel.key.token is 'the current grant; in the WHERE of every later write. 0: released';
comment on column semel.key.state is '1 leased, 2 waiting for a retry, 3 settled';
comment on column semel.key.until_ms is 'end of the lease, due time of the retry, or end of the retention';
comment on column semel.key.retention_ms is 'a settled key was settled at until_ms - retention_ms';
comment on column semel.key.outcome is '0 none yet, 1 done, 2 dead, 3 uncertain';
comment on column semel.key.suspect is 'an earlier holder let its lease expire';
comment on column semel.key.fingerprint is 'of the payload; null: not compared';
comment on column semel.key.alias_of is 'the key whose alias this is; null: a claim''s own key';
comment on column semel.key.result is 'result as JSON (null: JSON null), or the reason of the outcome or of the retry (UTF-8)';
comment on column semel.key.key_text is 'the key, for operators';
comment on column semel.key.attempt_log is 'failed attempts: 8 bytes time (ms), 4 attempt, 2 size, reason; null: none';

create table semel.subject (
    digest   bytea primary key,
    newest   bigint,
    holder   bytea,
    token    bigint not null,
    until_ms bigint not null
) with (fillfactor = 70);

comment on column semel.subject.digest is 'digest of tenant, handler, subject';
comment on column semel.subject.newest is 'position of the newest applied event';
comment on column semel.subject.holder is 'key of the event that is being handled';
comment on column semel.subject.token is 'the grant of that key';
comment on column semel.subject.until_ms is 'when it may be purged';

create table semel.dead_letter (
    id             bigint primary key,
    digest         bytea not null,
    aliases        bytea,
    outcome        smallint not null,
    reason         text not null,
    fingerprint    bytea,
    attempts       integer not null,
    settled_ms     bigint not null,
    expires_ms     bigint not null,
    decided_ms     bigint,
    tenant         text not null,
    handler        text not null,
    key_text       text not null,
    event          bytea,
    decode_options bytea,
    lane           text,
    only_handler   text,
    origin_token   bigint,
    attempt_log    bytea,
    result         bytea
);
create index dead_letter_undecided on semel.dead_letter (outcome, settled_ms, id) where decided_ms is null;
create index dead_letter_decided on semel.dead_letter (decided_ms) where decided_ms is not null;
create index dead_letter_digest on semel.dead_letter (digest);
create index dead_letter_origin on semel.dead_letter (digest, origin_token) where origin_token is not null;

comment on column semel.dead_letter.id is 'the token it was settled under, or the id of its inbox item';
comment on column semel.dead_letter.aliases is 'digests of its other keys; of all its keys if the inbox gave it up';
comment on column semel.dead_letter.outcome is '2 dead, 3 uncertain; 1 done, and replayed with force';
comment on column semel.dead_letter.expires_ms is 'end of the longest retention of its keys';
comment on column semel.dead_letter.decided_ms is 'when an operator decided about it';
comment on column semel.dead_letter.event is 'the document as it arrived; null: not kept';
comment on column semel.dead_letter.decode_options is 'null: the defaults';
comment on column semel.dead_letter.lane is 'lane of an item that the inbox gave up; null: its handler gave it up';
comment on column semel.dead_letter.only_handler is 'the only handler of the lane that it is for; '''': all of them';
comment on column semel.dead_letter.origin_token is 'token of its lease in another ledger; null: of this ledger';
comment on column semel.dead_letter.attempt_log is 'failed attempts, as in semel.key';
comment on column semel.dead_letter.result is 'result as JSON, if it was done; null: JSON null';

create table semel.decision (
    dead_letter_id bigint primary key,
    digest         bytea not null,
    decision       smallint not null,
    generation     integer not null,
    token          bigint not null,
    decided_ms     bigint not null,
    reason         text not null,
    decided_by     text not null
);
create index decision_digest on semel.decision (digest);

comment on column semel.decision.decision is '1 replayed, 2 discarded';
comment on column semel.decision.generation is 'the generation that it ended';
comment on column semel.decision.token is 'newest token at that time; a higher one belongs to a later generation';

create table semel.meta (
    name   text primary key,
    value  bigint,
    digest bytea
) with (fillfactor = 50);
insert into semel.meta values
    ('purge_position', -1, ''::bytea),   -- token and subject at which the last purge stopped
    ('dead_letter_store', 0, null),      -- locked by a transaction that keeps dead letters of another ledger
    ('settled_position', 0, null), ('mark_token', 0, null), ('mark_transaction', 0, null), ('mark_ms', 0, null);

-- ----------------------------------------------------------------------------------------------------- unsettled keys

-- Listings find keys that are not settled by their tokens. All keys up to the token in `settled_position` are settled,
-- except those in this table.
create table semel.unsettled_key (
    digest bytea primary key,
    token  bigint not null
);

-- Advances `settled_position` by at most `tokens_max` tokens and stores the unsettled keys that it passes. It passes only
-- tokens below a mark that is at least `rest_ms` old, and only when every transaction that ran when the mark was set has
-- ended: a row with such a token is visible now, or never will be.
create function semel.mark_unsettled_keys(tokens_max bigint, rest_ms bigint, clock_ms bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    mark bigint := (select value from semel.meta where name = 'mark_token');
    settled bigint;
    goal bigint;
begin
    select value into settled from semel.meta where name = 'settled_position' for update skip locked;
    if settled is null then
        return 0;   -- another process is doing this
    end if;
    delete from semel.unsettled_key u
    where not exists (select from semel.key y where y.digest = u.digest and y.token = u.token and y.state <> 3);
    if settled >= mark then
        update semel.meta m
        set value = case m.name when 'mark_token' then (select last_value from semel.token) when 'mark_ms' then now_ms
                                else pg_current_xact_id()::text::bigint end
        where m.name in ('mark_token', 'mark_ms', 'mark_transaction');
        return 0;
    end if;
    if (select value from semel.meta where name = 'mark_ms') > now_ms - rest_ms
       or (select value from semel.meta where name = 'mark_transaction')
          >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint then
        return 0;
    end if;
    goal := least(mark, settled + tokens_max);
    insert into semel.unsettled_key (digest, token)
    select y.digest, y.token from semel.key y where y.token > settled and y.token <= goal and y.state <> 3
    on conflict (digest) do update set token = excluded.token;
    update semel.meta set value = goal where name = 'settled_position';
    return goal - settled;
end $$;
