-- Claims. The life of a key's row on one line of time; what each claim does with it is decided by `values/claim_rules.py`:
--
--     insert            until            until                        until = settled + keep
--       │── state 1: Busy ──│── takeover ►    │                             │── state 3: Settled ──│── as new ►
--       │── state 1 ─ Retry ─ state 2: Busy ──│── next attempt ►
--
-- `now` is a parameter that is null for the server's clock. Rows are written and locked in the order of their keys, by
-- everybody: no two batches can wait for each other. Arrays come in that order, unless a statement sorts.

-- name: claim
-- One round trip: new keys are granted, and of the others what was known before this statement is read. A key that is in
-- neither part was granted to somebody else meanwhile, or has gone meanwhile: it is asked about again. What most claims
-- of a batch have in common ($4 to $7) comes once, and g says which of it is a claim's (null: there is only one). The
-- first row has all grants. An array that would hold nulls only comes empty: unnest fills up.
with clock as (
    select coalesce($9::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as now
), fresh as (
    insert into semel.key (token, until, first, keep, attempts, state, suspect, k, fp, tenant, handler, text)
    select token, now + ($4::bigint[])[g], now, ($5::bigint[])[g], 1, 1, false, k, fp, ($6::text[])[g], ($7::text[])[g], text
    from clock, (
        select nextval('semel.token') as token, k, fp, text, coalesce(g, 1) as g
        from unnest($1::bytea[], $2::bytea[], $3::text[], $8::smallint[]) as a (k, fp, text, g) offset 0
    ) a
    order by k
    on conflict (k) do nothing
    returning k, token
)
select now, (select array_agg(k) from fresh), (select array_agg(token) from fresh),
       null::bytea, null::bigint, null::smallint, null::bigint, null::integer, null::bigint, null::bytea, null::boolean,
       null::smallint, null::bytea
from clock
union all
select null, null, null, t.k, t.token, t.state, t.until, t.attempts, t.first, t.fp, t.suspect, t.outcome, t.result
from semel.key t
where t.k = any (array(select a.k from unnest($1::bytea[]) as a (k) where a.k not in (select k from fresh)))

-- name: lock_keys
select k, token, state, until, attempts, first, fp, suspect, outcome, result, tried
from semel.key where k = any ($1::bytea[]) order by k for update

-- name: lock_one_key
select k, token, state, until, attempts, first, fp, suspect, outcome, result, tried
from semel.key where k = $1 for update

-- name: lock_free_keys
-- As lock_keys, for when somebody holds a row for long: what is held is left out.
select k, token, state, until, attempts, first, fp, suspect, outcome, result, tried
from semel.key where k = any ($1::bytea[]) order by k for update skip locked

-- name: read_keys
select k, token, state, until, attempts, first, fp, suspect, outcome, result, tried
from semel.key where k = any ($1::bytea[])

-- name: make_subjects
insert into semel.subject (k, token, until) select k, 0, 0 from unnest($1::bytea[]) as a (k)
on conflict (k) do nothing

-- name: lock_subjects
select k, newest, holder, token from semel.subject where k = any ($1::bytea[]) order by k for update

-- name: next_tokens
-- Asked once the keys are locked: a grant's token is higher than all before it, and the time is not older than what was read.
select nextval('semel.token'), coalesce($2::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
from generate_series(1, $1::integer)

-- name: add_keys
insert into semel.key (token, until, first, keep, attempts, state, suspect, k, fp, owner, tenant, handler, text, tried)
select a.token, a.until, a.first, a.keep, a.attempts, 1, a.suspect, a.k, a.fp, a.owner, a.tenant, a.handler, a.text,
       a.tried
from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
            $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bytea[])
     as a (k, token, until, first, keep, attempts, suspect, fp, owner, tenant, handler, text, tried)
on conflict (k) do nothing
returning k

-- name: replace_keys
-- Takeover, next attempt, and what was settled and is over: compare-and-set on the token that was there when it was judged.
update semel.key t
set token = a.token, until = a.until, first = a.first, keep = a.keep, attempts = a.attempts, state = 1, outcome = 0,
    suspect = a.suspect, fp = a.fp, owner = a.owner, result = null,
    tenant = a.tenant, handler = a.handler, text = a.text, tried = a.tried
from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
            $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::bigint[])
     as a (k, token, until, first, keep, attempts, suspect, fp, owner, tenant, handler, text, tried, replaced)
where t.k = a.k and t.token = a.replaced
returning t.k

-- name: hold_subjects
update semel.subject t set holder = a.holder, token = a.token
from unnest($1::bytea[], $2::bytea[], $3::bigint[]) as a (k, holder, token)
where t.k = a.k
