-- Decisions about dead letters, and the dead-letter store of another ledger.

-- name: next_decision
-- The time, the token of the decision, and the id of the inbox item that a replay creates.
select coalesce($1, semel.now_ms()), nextval('semel.token'), nextval('semel.token')

-- name: lock_undecided
-- All undecided dead letters of a key. A concurrent decision waits here and finds the remaining ones.
select id, settled_ms, aliases, expires_ms - settled_ms as retention_ms, tenant, handler, key_text, fingerprint, event,
       decode_options, lane, only_handler
from semel.dead_letter where digest = $1 and decided_ms is null order by id for update

-- name: lock_settled_key
select token, until_ms, outcome = 1 and alias_of is null from semel.key where digest = $1 and state = 3 for update

-- name: newest_dead_letter
-- The newest one that a handler of this key gave up here, decided or not.
select max(id) from semel.dead_letter where digest = $1 and lane is null and origin_token is null

-- name: set_decided
update semel.dead_letter set decided_ms = $2 where id = $1

-- name: add_decision
-- Each replay ends one generation.
insert into semel.decision (dead_letter_id, digest, decision, generation, token, decided_ms, reason, decided_by)
select $1, $2, $3,
       1 + coalesce((select max(generation) from semel.decision where digest = $2 and decision = 1 and token < $1), 0),
       $4, $5, $6, $7

-- name: add_replayed_success
-- The record of a success that is replayed with force, as decided history. Its aliases are the other rows of its token.
insert into semel.dead_letter (id, digest, aliases, outcome, reason, fingerprint, attempts, settled_ms, expires_ms, decided_ms,
                               tenant, handler, key_text, attempt_log, result)
select y.token, y.digest, o.aliases, 1, '', y.fingerprint, y.attempts, y.until_ms - y.retention_ms,
       y.until_ms - y.retention_ms + greatest(y.retention_ms, o.retention_ms), $3,
       y.tenant, y.handler, y.key_text, y.attempt_log, y.result
from semel.key y cross join lateral (
    select string_agg(a.digest, ''::bytea) as aliases, max(a.retention_ms) as retention_ms
    from semel.key a where a.token = y.token and a.digest <> y.digest
) o
where y.digest = $1 and y.token = $2
returning aliases

-- name: delete_settled_keys
delete from semel.key where digest = any ($1::bytea[]) and token = $2 and state = 3

-- name: add_replayed_item
insert into semel.inbox (id, token, due_ms, accepted_ms, retention_ms, expired_leases, state, digest, digests, lane, tenant,
                         only_handler, key_text, event, decode_options)
values ($1, 0, $2, $2, $3, 0, 1, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: move_inbox_keys
update semel.inbox_key set id = $3 where digest = any ($1::bytea[]) and id = $2

-- name: lock_dead_letter_store
-- Only one transaction at a time keeps dead letters of another ledger: they are few.
select coalesce($1, semel.now_ms()) from semel.meta where name = 'dead_letter_store' for update

-- name: kept_dead_letters
select id, digest, origin_token, decided_ms is not null, event from semel.dead_letter
where digest = any ($1::bytea[]) and origin_token is not null order by id

-- name: delete_dead_letters
delete from semel.dead_letter where id = any ($1::bigint[])

-- name: keep_dead_letters
insert into semel.dead_letter (id, digest, aliases, outcome, reason, fingerprint, attempts, settled_ms, expires_ms, tenant,
                               handler, key_text, event, decode_options, origin_token, attempt_log)
select nextval('semel.token'), a.digest, a.aliases, a.outcome, a.reason, a.fingerprint, a.attempts, $1::bigint,
       $1 + a.retention_ms, a.tenant, a.handler, a.key_text, a.event, a.decode_options, a.origin_token, a.attempt_log
from unnest($2::bytea[], $3::bytea[], $4::smallint[], $5::text[], $6::bytea[], $7::integer[], $8::bigint[], $9::text[],
            $10::text[], $11::text[], $12::bytea[], $13::bytea[], $14::bigint[], $15::bytea[])
     as a (digest, aliases, outcome, reason, fingerprint, attempts, retention_ms, tenant, handler, key_text, event,
           decode_options, origin_token, attempt_log)

-- name: withdraw_dead_letters
-- Deletes the newest one: a ledger that lost its data may use a token twice, and the older one belongs to the lost data.
delete from semel.dead_letter where id in (
    select max(l.id) from semel.dead_letter l, unnest($1::bytea[], $2::bigint[]) as a (digest, origin_token)
    where l.digest = a.digest and l.origin_token = a.origin_token and l.decided_ms is null
    group by l.digest, l.origin_token
)
