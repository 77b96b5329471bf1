-- What people may see, by name: each query brings the columns of an Entry, and for its decision
-- what came of its attempts. :handler, :tenant, :reason,
-- :since, :until and :limit are the filters. A generation is one more than the replays that came before it.

-- name: accepted_entries
-- Whatever has a lease, or waits for its next attempt, is listed as that.
select lower(hex(i.k)), iif(i.only_handler = '', i.lane, i.only_handler), i.text, i.tenant, 'accepted', ifnull(i.reason, ''), i.lapses,
       i.accepted, null, null,
       1 + ifnull((select max(generation) from semel_decision where k = i.k and what = 1), 0), null
from semel_inbox i
where (:handler = '' or i.lane = :handler or i.only_handler = :handler) and (:tenant is null or i.tenant = :tenant)
      and i.accepted >= :since and i.accepted < :until
      and (:reason = '' or semel_contains(i.reason, :reason))
      and not exists (select 1 from semel_lease l where l.k = i.k)
order by i.id desc limit :limit

-- name: lease_entries
select lower(hex(l.k)), l.handler, l.text, l.tenant, iif(l.state = 1, 'leased', 'waiting'),
       iif(l.state = 1, '', ifnull(l.reason, '')), l.attempts, l.first, null, null,
       1 + ifnull((select max(generation) from semel_decision where k = l.k and what = 1), 0), l.tried
from semel_lease l
where l.owner is null and (:lease_state is null or l.state = :lease_state)
      and (:handler = '' or l.handler = :handler) and (:tenant is null or l.tenant = :tenant)
      and l.first >= :since and l.first < :until
      and (:reason = '' or (l.state = 2 and semel_contains(l.reason, :reason)))
order by l.first desc, l.rowid desc limit :limit

-- name: letter_entries
select lower(hex(r.k)), r.handler, r.text, r.tenant, iif(r.outcome = 2, 'dead', 'uncertain'), cast(r.result as text),
       r.attempts, r.at, l.event, null,
       1 + ifnull((select max(generation) from semel_decision where k = r.k and what = 1 and token < r.id), 0), t.tried
from semel_record r left join semel_letter l on l.id = r.id left join semel_tried t on t.id = r.id
where r.outcome <> 1 and r.decided is null and r.outcome = :outcome and r.at >= :since and r.at < :until
      and (:handler = '' or r.handler = :handler) and (:tenant is null or r.tenant = :tenant)
      and (:reason = '' or semel_contains(cast(r.result as text), :reason))
order by r.at desc, r.id desc limit :limit

-- name: done_entries
-- In the order of their grants, which needs no index; `catalog.py` sorts the newest of them by the time of their end.
select lower(hex(r.k)), r.handler, r.text, r.tenant, 'done', '', r.attempts, r.at, null, ifnull(r.result, x'6e756c6c'),
       1 + ifnull((select max(generation) from semel_decision where k = r.k and what = 1 and token < r.id), 0), t.tried
from semel_record r left join semel_tried t on t.id = r.id
where r.outcome = 1 and r.decided is null and r.at >= :since and r.at < :until
      and (:handler = '' or r.handler = :handler) and (:tenant is null or r.tenant = :tenant)
order by r.id desc limit :limit

-- name: lease_of
select lower(hex(ifnull(l.owner, l.k))), l.handler, l.text, l.tenant, iif(l.state = 1, 'leased', 'waiting'),
       iif(l.state = 1, '', ifnull(l.reason, '')), l.attempts, l.first, null, null,
       1 + ifnull((select max(generation) from semel_decision where k = ifnull(l.owner, l.k) and what = 1), 0), l.tried
from semel_lease l where l.k = ?

-- name: letters_waiting_of
select lower(hex(i.k)), iif(i.only_handler = '', i.lane, i.only_handler), i.text, i.tenant, 'accepted', ifnull(i.reason, ''), i.lapses,
       i.accepted, null, null,
       1 + ifnull((select max(generation) from semel_decision where k = i.k and what = 1), 0), null
from semel_inbox_key q join semel_inbox i on i.id = q.id where q.k = ? order by i.id desc

-- name: records_of
-- By its own key or an alias, as it answers now; and as it ended before.
select lower(hex(r.k)), r.handler, r.text, r.tenant,
       case when d.what = 1 then 'replayed' when d.what = 2 then 'discarded'
            when r.outcome = 1 then 'done' when r.outcome = 2 then 'dead' else 'uncertain' end,
       iif(r.outcome = 1, '', cast(r.result as text)), r.attempts, ifnull(d.at, r.at), l.event,
       iif(r.outcome = 1, ifnull(r.result, x'6e756c6c'), null),
       1 + ifnull((select max(generation) from semel_decision where k = r.k and what = 1 and token < r.id), 0), t.tried,
       d.what, d.at, d.by, d.reason
from semel_record r left join semel_letter l on l.id = r.id left join semel_decision d on d.rec = r.id
     left join semel_tried t on t.id = r.id
where r.id in (
    select rec from semel_done where k = ?1
    union select id from semel_inbox_key where k = ?1
    union select id from semel_record where k = ?1 and outcome <> 1
    union select rec from semel_decision where k = ?1
)
order by r.id desc

-- name: count_accepted
-- Less those that have a lease, which are few: looked up from there, not from a million letters.
select (select count(*) from semel_inbox) - (
    select count(distinct i.id)
    from semel_lease l cross join semel_inbox_key q on q.k = l.k cross join semel_inbox i on i.id = q.id and i.k = l.k
)

-- name: count_leases
select count(*) filter (where state = 1), count(*) filter (where state = 2) from semel_lease where owner is null

-- name: count_letters
select outcome, count(*) from semel_record where outcome <> 1 and decided is null group by outcome

-- name: count_records
select (select count(*) from semel_record), (select count(*) from semel_decision)
