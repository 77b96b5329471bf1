-- Statements about letters, by name.

-- name: undecided_letter
-- The letter that answers its key now; else the newest one that still waits for a person.
select r.id, r.aliases, r.expires - r.at, r.tenant, r.handler, r.text, r.fp, l.event, l.reading, l.lane, l.only_handler
from semel_record r left join semel_letter l on l.id = r.id
where r.k = ?1 and r.outcome <> 1 and r.decided is null
order by r.id = (select rec from semel_done where k = ?1) desc, r.at desc, r.id desc limit 1

-- name: answering_done
-- What a person may have done once more.
select r.id, r.aliases, r.expires - r.at, r.tenant, r.handler, r.text, r.fp, null, null, null, null
from semel_done d join semel_record r on r.id = d.rec
where d.k = ?1 and r.k = ?1 and r.outcome = 1 and d.expires > ?2

-- name: answered_by_another
select 1 from semel_done where k = ? and rec <> ? and expires > ?

-- name: decide
update semel_record set decided = ? where id = ? and decided is null

-- name: add_decision
-- Generations are counted by replays: each ends one.
insert into semel_decision (rec, k, what, generation, token, at, reason, by)
select ?1, ?2, ?3,
       1 + ifnull((select max(generation) from semel_decision where k = ?2 and what = 1 and token < ?1), 0),
       ?4, ?5, ?6, ?7

-- name: move_key
update semel_inbox_key set id = ?3 where k = ?1 and id = ?2

-- name: kept
-- What was kept of this key for a ledger elsewhere: there is seldom more than one.
select r.id, r.source, r.decided, l.event
from semel_record r left join semel_letter l on l.id = r.id
where r.k = ? and r.outcome <> 1 and r.source is not null

-- name: keep_record
insert into semel_record (id, k, aliases, outcome, result, fp, attempts, at, expires, tenant, handler, text, source)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
