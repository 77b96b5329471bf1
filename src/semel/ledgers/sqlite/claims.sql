-- Statements of the ledger. All of them run inside an immediate transaction. {keys} becomes a list of placeholders,
-- {rows} a list of rows. Every write after a claim has the token in its WHERE.

-- name: last_token
select value from semel_meta where name = 'token'

-- name: set_last_token
update semel_meta set value = ? where name = 'token'

-- name: touch
insert or replace into semel_meta values ('touched', ?)

-- name: known_keys
-- Settled keys and open keys. State 3 is settled.
select d.digest, r.id, 3, d.expires_ms, r.attempts, r.settled_ms, r.fingerprint, 0, r.outcome, r.result, null
from semel_done d join semel_record r on r.id = d.record_id
where d.digest in ({keys})
union all
select digest, token, state, until_ms, attempts, first_granted_ms, fingerprint, suspect, null, null, attempt_log
from semel_lease where digest in ({keys})

-- name: subjects
select digest, newest, holder, token from semel_subject where digest in ({keys})

-- name: add_leases
insert into semel_lease (digest, token, state, until_ms, attempts, first_granted_ms, suspect, fingerprint, retention_ms,
                         tenant, handler, key_text, alias_of)
values {rows}

-- name: replace_lease
-- Takeover or next attempt: compare-and-set on the token that the key had when the claim was decided.
update semel_lease set token = ?, state = 1, until_ms = ?, attempts = ?, first_granted_ms = ?, fingerprint = ?, suspect = ?,
                       alias_of = ?, attempt_log = ?
where digest = ? and token = ?

-- name: set_attempt_log
-- For a new key whose alias was tried before.
update semel_lease set attempt_log = ? where digest = ? and token = ?

-- name: hold_subjects
insert into semel_subject values {rows}
on conflict (digest) do update set holder = excluded.holder, token = excluded.token where excluded.token > token

-- name: end_leases
-- Pairs, not two lists: a key must not be ended with the token of another key.
delete from semel_lease where (digest, token) in (values {rows}) and state = 1
returning digest, token, attempts, fingerprint, attempt_log

-- name: add_records
insert into semel_record (id, digest, aliases, outcome, result, fingerprint, attempts, settled_ms, expires_ms, tenant,
                          handler, key_text, origin_token)
values {rows}

-- name: add_done
insert or replace into semel_done values {rows}

-- name: add_dead_letter
insert into semel_dead_letter (id, event, decode_options) values (?, ?, ?)

-- name: add_attempt_log
insert into semel_attempt_log values (?, ?)

-- name: settled_under
select digest, outcome, result from semel_record where id = ?

-- name: attempt_log
select attempts, attempt_log from semel_lease where digest = ? and token = ? and state = 1

-- name: wait
update semel_lease set state = 2, until_ms = ?, reason = ?, attempt_log = ? where digest = ? and token = ? and state = 1

-- name: is_waiting
select 1 from semel_lease where digest = ? and token = ? and state = 2

-- name: release_first
delete from semel_lease where digest = ? and token = ? and state = 1 and attempts = 1

-- name: release_later
-- No lease has token 0. A suspect key stays an expired lease: a wait would hide that a holder vanished.
update semel_lease set token = 0, state = iif(suspect, 1, 2), until_ms = 0, attempts = attempts - 1
where digest = ? and token = ? and state = 1 and attempts > 1 and until_ms > 0

-- name: has_key
select 1 from semel_lease where digest = ? and token = ?

-- name: is_held
select 1 from semel_lease where digest = ? and token = ? and state = 1

-- name: has_subject
select 1 from semel_subject where digest = ? and token = ? and holder is not null

-- name: apply_position
insert into semel_subject values (?1, ?2, null, 0, ?3)
on conflict (digest) do update set newest = max(ifnull(newest, ?2), ?2), until_ms = max(until_ms, ?3)

-- name: free_subject
update semel_subject set holder = null, until_ms = max(until_ms, ?) where digest = ? and token = ?

-- name: renew
update semel_lease set until_ms = ? where digest = ? and token = ? and state = 1 and until_ms > 0

-- name: purge_position
select value from semel_meta where name = 'purge_position'

-- name: set_purge_position
update semel_meta set value = ?1 where name = 'purge_position' and value <> ?1

-- name: examine_records
-- The last column is when the record may be deleted. It is null for a dead letter without a decision. A record with a
-- decision is kept for its retention once more, as history.
select id, digest, aliases, outcome <> 1 or attempts > 1 or decided_ms is not null,
       case when decided_ms is not null then max(expires_ms, decided_ms + expires_ms - settled_ms)
            when outcome = 1 then expires_ms end
from semel_record where id > ? order by id limit ?

-- name: delete_done
delete from semel_done where digest = ? and record_id = ?

-- name: delete_record
delete from semel_record where id = ?

-- name: delete_dead_letter
delete from semel_dead_letter where id = ?

-- name: delete_attempt_log
delete from semel_attempt_log where id = ?

-- name: delete_decision
delete from semel_decision where record_id = ?

-- name: delete_abandoned
-- Retries that were not redelivered for their whole retention. An expired lease is uncertain, and stays.
delete from semel_lease
where digest in (select digest from semel_lease where state = 2 and until_ms + retention_ms <= ? limit ?)
returning 1

-- name: delete_subjects
delete from semel_subject where digest in (select digest from semel_subject where holder is null and until_ms <= ? limit ?)
