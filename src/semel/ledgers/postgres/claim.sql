-- Claims. `values/claim_rules.py` decides each claim by the state of its key's row:
--
--     insert           until_ms         until_ms                until_ms = settled + retention
--       │── state 1: Busy ──│── takeover ►    │                             │── state 3: Settled ──│── as new ►
--       │── state 1 ─ Retry ─ state 2: Busy ──│── next attempt ►
--
-- Every transaction writes and locks rows in the order of their digests, so that two batches never wait for each other.
-- Arrays arrive in that order, unless a statement sorts. The last parameter is the time; null: the server's clock.

-- name: claim
-- One round trip: grants new keys, and reads the state that the others had before this statement. A key in neither part was
-- granted to another claim or purged meanwhile, and is claimed again. Values that most claims of a batch share ($4 to $7)
-- are passed once per group; $8 has the group of each claim (null: there is only one). The first row has all grants. An array
-- of nulls is passed empty, and unnest fills it up.
with clock as (
    select coalesce($9::bigint, semel.now_ms()) as now_ms
), granted as (
    insert into semel.key (token, until_ms, first_granted_ms, retention_ms, attempts, state, suspect, digest, fingerprint,
                           tenant, handler, key_text)
    select token, now_ms + ($4::bigint[])[group_number], now_ms, ($5::bigint[])[group_number], 1, 1, false, digest, fingerprint,
           ($6::text[])[group_number], ($7::text[])[group_number], key_text
    from clock, (
        select nextval('semel.token') as token, digest, fingerprint, key_text, coalesce(group_number, 1) as group_number
        from unnest($1::bytea[], $2::bytea[], $3::text[], $8::smallint[]) as a (digest, fingerprint, key_text, group_number)
        offset 0
    ) a
    order by digest
    on conflict (digest) do nothing
    returning digest, token
)
select now_ms, (select array_agg(digest) from granted), (select array_agg(token) from granted),
       null::bytea, null::bigint, null::smallint, null::bigint, null::integer, null::bigint, null::bytea, null::boolean,
       null::smallint, null::bytea
from clock
union all
select null, null, null, t.digest, t.token, t.state, t.until_ms, t.attempts, t.first_granted_ms, t.fingerprint, t.suspect,
       t.outcome, t.result
from semel.key t
where t.digest = any (array(
    select a.digest from unnest($1::bytea[]) as a (digest) where a.digest not in (select digest from granted)))

-- name: lock_keys
select digest, token, state, until_ms, attempts, first_granted_ms, fingerprint, suspect, outcome, result, attempt_log
from semel.key where digest = any ($1::bytea[]) order by digest for update

-- name: lock_one_key
select digest, token, state, until_ms, attempts, first_granted_ms, fingerprint, suspect, outcome, result, attempt_log
from semel.key where digest = $1 for update

-- name: lock_free_keys
-- Like lock_keys, but omits rows that another transaction has locked.
select digest, token, state, until_ms, attempts, first_granted_ms, fingerprint, suspect, outcome, result, attempt_log
from semel.key where digest = any ($1::bytea[]) order by digest for update skip locked

-- name: read_keys
select digest, token, state, until_ms, attempts, first_granted_ms, fingerprint, suspect, outcome, result, attempt_log
from semel.key where digest = any ($1::bytea[])

-- name: create_subjects
insert into semel.subject (digest, token, until_ms) select digest, 0, 0 from unnest($1::bytea[]) as a (digest)
on conflict (digest) do nothing

-- name: lock_subjects
select digest, newest, holder, token from semel.subject where digest = any ($1::bytea[]) order by digest for update

-- name: next_tokens
-- Runs after the keys are locked: the token is higher than all earlier ones, and the time is not older than the rows read.
select nextval('semel.token'), coalesce($2::bigint, semel.now_ms()) from generate_series(1, $1::integer)

-- name: add_keys
insert into semel.key (token, until_ms, first_granted_ms, retention_ms, attempts, state, suspect, digest, fingerprint, alias_of,
                       tenant, handler, key_text, attempt_log)
select a.token, a.until_ms, a.first_granted_ms, a.retention_ms, a.attempts, 1, a.suspect, a.digest, a.fingerprint, a.alias_of,
       a.tenant, a.handler, a.key_text, a.attempt_log
from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
            $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bytea[])
     as a (digest, token, until_ms, first_granted_ms, retention_ms, attempts, suspect, fingerprint, alias_of, tenant, handler,
           key_text, attempt_log)
on conflict (digest) do nothing
returning digest

-- name: replace_keys
-- Takeovers, next attempts, and settled keys whose retention has ended: compare-and-set on the token that was judged.
update semel.key t
set token = a.token, until_ms = a.until_ms, first_granted_ms = a.first_granted_ms, retention_ms = a.retention_ms,
    attempts = a.attempts, state = 1, outcome = 0, suspect = a.suspect, fingerprint = a.fingerprint, alias_of = a.alias_of,
    result = null, tenant = a.tenant, handler = a.handler, key_text = a.key_text, attempt_log = a.attempt_log
from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::boolean[],
            $8::bytea[], $9::bytea[], $10::text[], $11::text[], $12::text[], $13::bytea[], $14::bigint[])
     as a (digest, token, until_ms, first_granted_ms, retention_ms, attempts, suspect, fingerprint, alias_of, tenant, handler,
           key_text, attempt_log, replaced)
where t.digest = a.digest and t.token = a.replaced
returning t.digest

-- name: hold_subjects
update semel.subject t set holder = a.holder, token = a.token
from unnest($1::bytea[], $2::bytea[], $3::bigint[]) as a (digest, holder, token)
where t.digest = a.digest
