-- Statements about letters, by name.

-- name: moment
-- The time, the number of a decision, and that of the letter that a replay makes.
select coalesce($1, semel.now_ms()), nextval('semel.token'), nextval('semel.token')

-- name: lock_undecided
-- All letters of a key that wait for a person. Who comes second waits here, and finds what is left.
select id, at, aliases, expires - at as keep_ms, tenant, handler, text, fp, event, reading, lane, only_handler
from semel.letter where k = $1 and decided is null order by id for update

-- name: lock_key
select token, until, outcome = 1 and owner is null from semel.key where k = $1 and state = 3 for update

-- name: last_letter
-- The last one that a handler of this key gave up here, decided or not.
select max(id) from semel.letter where k = $1 and lane is null and source is null

-- name: decide
update semel.letter set decided = $2 where id = $1

-- name: add_decision
-- Generations are counted by replays: each ends one.
insert into semel.decision (rec, k, what, generation, token, at, reason, by)
select $1, $2, $3, 1 + coalesce((select max(generation) from semel.decision where k = $2 and what = 1 and token < $1), 0),
       $4, $5, $6, $7

-- name: keep_done
-- What is done and steps back: as history, which has been decided about. Its aliases are the other rows of its token.
insert into semel.letter (id, k, aliases, outcome, reason, fp, attempts, at, expires, decided, tenant, handler, text,
                          tried, result)
select y.token, y.k, o.aliases, 1, '', y.fp, y.attempts, y.until - y.keep, y.until - y.keep + greatest(y.keep, o.keep), $3,
       y.tenant, y.handler, y.text, y.tried, y.result
from semel.key y cross join lateral (
    select string_agg(a.k, ''::bytea) as aliases, max(a.keep) as keep
    from semel.key a where a.token = y.token and a.k <> y.k
) o
where y.k = $1 and y.token = $2
returning aliases

-- name: forget_record
delete from semel.key where k = any ($1::bytea[]) and token = $2 and state = 3

-- name: add_replayed
insert into semel.inbox (id, token, due, accepted, keep, lapses, state, k, keys, lane, tenant, only_handler, text, event,
                         reading)
values ($1, 0, $2, $2, $3, 0, 1, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: move_keys
update semel.inbox_key set id = $3 where k = any ($1::bytea[]) and id = $2

-- name: lock_letterbox
-- Whoever keeps letters of a ledger elsewhere does so alone: they are few.
select coalesce($1, semel.now_ms()) from semel.meta where name = 'letterbox' for update

-- name: kept
-- What was kept of these keys for a ledger elsewhere.
select id, k, source, decided is not null, event from semel.letter
where k = any ($1::bytea[]) and source is not null order by id

-- name: forget_kept
delete from semel.letter where id = any ($1::bigint[])

-- name: keep
insert into semel.letter (id, k, aliases, outcome, reason, fp, attempts, at, expires, tenant, handler, text, event, reading,
                          source, tried)
select nextval('semel.token'), a.k, a.aliases, a.outcome, a.reason, a.fp, a.attempts, $1::bigint, $1 + a.keep, a.tenant,
       a.handler, a.text, a.event, a.reading, a.source, a.tried
from unnest($2::bytea[], $3::bytea[], $4::smallint[], $5::text[], $6::bytea[], $7::integer[], $8::bigint[], $9::text[],
            $10::text[], $11::text[], $12::bytea[], $13::bytea[], $14::bigint[], $15::bytea[])
     as a (k, aliases, outcome, reason, fp, attempts, keep, tenant, handler, text, event, reading, source, tried)

-- name: withdraw
-- The newest: a ledger that lost its data may give a token twice, and an older letter is of a life before.
delete from semel.letter where id in (
    select max(l.id) from semel.letter l, unnest($1::bytea[], $2::bigint[]) as a (k, source)
    where l.k = a.k and l.source = a.source and l.decided is null
    group by l.k, l.source
)
