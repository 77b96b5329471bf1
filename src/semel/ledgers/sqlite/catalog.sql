-- Queries for operators. Each one returns the fields of an Entry up to its generation, then the attempt log. :handler,
-- :tenant, :reason, :since, :until and :limit are the filters. The generation is the number of earlier replays plus one.

-- name: accepted_entries
-- An item whose key is leased or waits for a retry is listed in that state instead.
select lower(hex(i.digest)), iif(i.only_handler = '', i.lane, i.only_handler), i.key_text, i.tenant, 'accepted',
       ifnull(i.reason, ''), i.expired_leases, i.accepted_ms, null, null,
       1 + ifnull((select max(generation) from semel_decision where digest = i.digest and decision = 1), 0), null
from semel_inbox i
where (:handler = '' or i.lane = :handler or i.only_handler = :handler) and (:tenant is null or i.tenant = :tenant)
      and i.accepted_ms >= :since and i.accepted_ms < :until
      and (:reason = '' or semel_contains(i.reason, :reason))
      and not exists (select 1 from semel_lease l where l.digest = i.digest)
order by i.id desc limit :limit

-- name: lease_entries
select lower(hex(l.digest)), l.handler, l.key_text, l.tenant, iif(l.state = 1, 'leased', 'waiting'),
       iif(l.state = 1, '', ifnull(l.reason, '')), l.attempts, l.first_granted_ms, null, null,
       1 + ifnull((select max(generation) from semel_decision where digest = l.digest and decision = 1), 0), l.attempt_log
from semel_lease l
where l.alias_of is null and l.state = :lease_state
      and (:handler = '' or l.handler = :handler) and (:tenant is null or l.tenant = :tenant)
      and l.first_granted_ms >= :since and l.first_granted_ms < :until
      and (:reason = '' or (l.state = 2 and semel_contains(l.reason, :reason)))
order by l.first_granted_ms desc, l.rowid desc limit :limit

-- name: dead_letter_entries
select lower(hex(r.digest)), r.handler, r.key_text, r.tenant, iif(r.outcome = 2, 'dead', 'uncertain'), cast(r.result as text),
       r.attempts, r.settled_ms, l.event, null,
       1 + ifnull((select max(generation) from semel_decision where digest = r.digest and decision = 1 and token < r.id), 0),
       a.attempt_log
from semel_record r left join semel_dead_letter l on l.id = r.id left join semel_attempt_log a on a.id = r.id
where r.outcome <> 1 and r.decided_ms is null and r.outcome = :outcome
      and r.settled_ms >= :since and r.settled_ms < :until
      and (:handler = '' or r.handler = :handler) and (:tenant is null or r.tenant = :tenant)
      and (:reason = '' or semel_contains(cast(r.result as text), :reason))
order by r.settled_ms desc, r.id desc limit :limit

-- name: done_entries
-- In the order of their grants, which needs no index. The newest of them are sorted by their ends afterwards.
select lower(hex(r.digest)), r.handler, r.key_text, r.tenant, 'done', '', r.attempts, r.settled_ms, null,
       ifnull(r.result, x'6e756c6c'),
       1 + ifnull((select max(generation) from semel_decision where digest = r.digest and decision = 1 and token < r.id), 0),
       a.attempt_log
from semel_record r left join semel_attempt_log a on a.id = r.id
where r.outcome = 1 and r.decided_ms is null and r.settled_ms >= :since and r.settled_ms < :until
      and (:handler = '' or r.handler = :handler) and (:tenant is null or r.tenant = :tenant)
order by r.id desc limit :limit

-- name: lease_of_key
select lower(hex(ifnull(l.alias_of, l.digest))), l.handler, l.key_text, l.tenant, iif(l.state = 1, 'leased', 'waiting'),
       iif(l.state = 1, '', ifnull(l.reason, '')), l.attempts, l.first_granted_ms, null, null,
       1 + ifnull((select max(generation) from semel_decision
                   where digest = ifnull(l.alias_of, l.digest) and decision = 1), 0),
       l.attempt_log
from semel_lease l where l.digest = ?

-- name: inbox_items_of_key
select lower(hex(i.digest)), iif(i.only_handler = '', i.lane, i.only_handler), i.key_text, i.tenant, 'accepted',
       ifnull(i.reason, ''), i.expired_leases, i.accepted_ms, null, null,
       1 + ifnull((select max(generation) from semel_decision where digest = i.digest and decision = 1), 0), null
from semel_inbox_key q join semel_inbox i on i.id = q.id where q.digest = ? order by i.id desc

-- name: records_of_key
-- By its own digest or an alias: the record that answers now, and those of earlier generations with their decisions.
select lower(hex(r.digest)), r.handler, r.key_text, r.tenant,
       case when d.decision = 1 then 'replayed' when d.decision = 2 then 'discarded'
            when r.outcome = 1 then 'done' when r.outcome = 2 then 'dead' else 'uncertain' end,
       iif(r.outcome = 1, '', cast(r.result as text)), r.attempts, ifnull(d.decided_ms, r.settled_ms), l.event,
       iif(r.outcome = 1, ifnull(r.result, x'6e756c6c'), null),
       1 + ifnull((select max(generation) from semel_decision where digest = r.digest and decision = 1 and token < r.id), 0),
       a.attempt_log, d.decision, d.decided_ms, d.decided_by, d.reason
from semel_record r left join semel_dead_letter l on l.id = r.id left join semel_decision d on d.record_id = r.id
     left join semel_attempt_log a on a.id = r.id
where r.id in (
    select record_id from semel_done where digest = ?1
    union select id from semel_inbox_key where digest = ?1
    union select id from semel_record where digest = ?1 and outcome <> 1
    union select record_id from semel_decision where digest = ?1
)
order by r.id desc

-- name: count_accepted
-- Items whose key has a lease are subtracted. Leases are few, so the query starts from them.
select (select count(*) from semel_inbox) - (
    select count(distinct i.id)
    from semel_lease l cross join semel_inbox_key q on q.digest = l.digest
         cross join semel_inbox i on i.id = q.id and i.digest = l.digest
)

-- name: count_leases
select count(*) filter (where state = 1), count(*) filter (where state = 2) from semel_lease where alias_of is null

-- name: count_dead_letters
select outcome, count(*) from semel_record where outcome <> 1 and decided_ms is null group by outcome

-- name: count_records
select (select count(*) from semel_record), (select count(*) from semel_decision)
