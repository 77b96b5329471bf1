-- Statements about dead letters.

-- name: undecided_dead_letter
-- The dead letter that answers its key now; else the newest one without a decision.
select r.id, r.aliases, r.expires_ms - r.settled_ms, r.tenant, r.handler, r.key_text, r.fingerprint, l.event,
       l.decode_options, l.lane, l.only_handler
from semel_record r left join semel_dead_letter l on l.id = r.id
where r.digest = ?1 and r.outcome <> 1 and r.decided_ms is null
order by r.id = (select record_id from semel_done where digest = ?1) desc, r.settled_ms desc, r.id desc limit 1

-- name: answering_success
-- The success that answers the key now, in the same columns.
select r.id, r.aliases, r.expires_ms - r.settled_ms, r.tenant, r.handler, r.key_text, r.fingerprint, null, null, null, null
from semel_done d join semel_record r on r.id = d.record_id
where d.digest = ?1 and r.digest = ?1 and r.outcome = 1 and d.expires_ms > ?2

-- name: answered_by_another
select 1 from semel_done where digest = ? and record_id <> ? and expires_ms > ?

-- name: decide
update semel_record set decided_ms = ? where id = ? and decided_ms is null

-- name: add_decision
-- Every replay ends a generation.
insert into semel_decision (record_id, digest, decision, generation, token, decided_ms, reason, decided_by)
select ?1, ?2, ?3,
       1 + ifnull((select max(generation) from semel_decision where digest = ?2 and decision = 1 and token < ?1), 0),
       ?4, ?5, ?6, ?7

-- name: move_key
update semel_inbox_key set id = ?3 where digest = ?1 and id = ?2

-- name: dead_letters_of_another_ledger
select r.id, r.origin_token, r.decided_ms, l.event
from semel_record r left join semel_dead_letter l on l.id = r.id
where r.digest = ? and r.outcome <> 1 and r.origin_token is not null
