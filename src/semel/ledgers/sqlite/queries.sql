-- The ledger's statements, by name. All run inside an immediate transaction. {keys} and {others} become lists of
-- placeholders, {rows} a list of rows. Every write after a claim has the token in its WHERE.

-- name: last_token
select value from semel_meta where name = 'token'

-- name: set_last_token
update semel_meta set value = ? where name = 'token'

-- name: settled
select d.k, d.expires, r.id, r.outcome, r.result, r.fp, r.attempts, r.at
from semel_done d join semel_record r on r.id = d.rec
where d.k in ({keys})

-- name: leases
select k, token, state, until, attempts, first, fp, suspect, tried from semel_lease where k in ({keys})

-- name: subjects
select k, newest, holder, token from semel_subject where k in ({keys})

-- name: add_leases
insert into semel_lease (k, token, state, until, attempts, first, suspect, fp, keep, tenant, handler, text, owner)
values {rows}

-- name: replace_lease
-- Takeover and next attempt: compare-and-set on the token that was there when the claim was judged.
update semel_lease set token = ?, state = 1, until = ?, attempts = ?, first = ?, fp = ?, suspect = ?, owner = ?, tried = ?
where k = ? and token = ?

-- name: set_tried
-- Of a key that is new, where an alias of it is not.
update semel_lease set tried = ? where k = ? and token = ?

-- name: hold_subjects
insert into semel_subject values {rows}
on conflict (k) do update set holder = excluded.holder, token = excluded.token where excluded.token > token

-- name: end_leases
-- Pairs, not two lists: a token with another's key is nobody's.
delete from semel_lease where (k, token) in (values {rows}) and state = 1
returning k, token, attempts, fp, tried

-- name: add_records
insert into semel_record (id, k, aliases, outcome, result, fp, attempts, at, expires, tenant, handler, text) values {rows}

-- name: add_done
insert or replace into semel_done values {rows}

-- name: add_letter
insert into semel_letter (id, event, reading) values (?, ?, ?)

-- name: add_tried
insert into semel_tried values (?, ?)

-- name: settled_under
select k, outcome, result from semel_record where id = ?

-- name: attempt_log
select attempts, tried from semel_lease where k = ? and token = ? and state = 1

-- name: wait
update semel_lease set state = 2, until = ?, reason = ?, tried = ? where k = ? and token = ? and state = 1

-- name: is_waiting
select 1 from semel_lease where k = ? and token = ? and state = 2

-- name: release_first
delete from semel_lease where k = ? and token = ? and state = 1 and attempts = 1

-- name: release_later
-- Token 0 is nobody's. What was in doubt stays in doubt: a lapsed lease, not a wait.
update semel_lease set token = 0, state = iif(suspect, 1, 2), until = 0, attempts = attempts - 1
where k = ? and token = ? and state = 1 and attempts > 1 and until > 0

-- name: has_key
select 1 from semel_lease where k = ? and token = ?

-- name: is_held
select 1 from semel_lease where k = ? and token = ? and state = 1

-- name: has_subject
select 1 from semel_subject where k = ? and token = ? and holder is not null

-- name: apply_position
insert into semel_subject values (?1, ?2, null, 0, ?3)
on conflict (k) do update set newest = max(ifnull(newest, ?2), ?2), until = max(until, ?3)

-- name: free_subject
update semel_subject set holder = null, until = max(until, ?) where k = ? and token = ?

-- name: renew
update semel_lease set until = ? where k = ? and token = ? and state = 1 and until > 0

-- name: last_swept
select value from semel_meta where name = 'swept'

-- name: set_last_swept
update semel_meta set value = ?1 where name = 'swept' and value <> ?1

-- name: sweep
-- Letters wait for a person; what was decided is kept for its retention once more, as history.
select id, k, aliases, outcome <> 1 or attempts > 1 or decided is not null,
       case when decided is not null then max(expires, decided + expires - at) when outcome = 1 then expires end
from semel_record where id > ? order by id limit ?

-- name: forget_done
delete from semel_done where k = ? and rec = ?

-- name: forget_record
delete from semel_record where id = ?

-- name: forget_letter
delete from semel_letter where id = ?

-- name: forget_tried
delete from semel_tried where id = ?

-- name: forget_decision
delete from semel_decision where rec = ?

-- name: forget_abandoned
-- A retry that nobody brought again for its whole retention. A lapsed lease is in doubt, and stays.
delete from semel_lease where k in (select k from semel_lease where state = 2 and until + keep <= ? limit ?)
returning 1

-- name: forget_subjects
delete from semel_subject where k in (select k from semel_subject where holder is null and until <= ? limit ?)
