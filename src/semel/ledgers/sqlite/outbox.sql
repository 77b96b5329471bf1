-- The outbox's statements, by name. Every write after a take has the token in its WHERE.

-- name: known_notifications
select id, fp, state from semel_notification where id in ({keys})

-- name: add_notifications
insert into semel_adding (id, tenant, key, kind, recipient, who, channel, generation, content, fp, options, added, lane,
                          priority, standing, ordered)
values {rows}

-- name: lanes_due
-- Where there is something to take: each lane with its priorities.
select l.value, p.value from json_each(?1) l cross join json_each('[0,1,2,3,4,5,6,7,8,9]') p
where exists (select 1 from semel_dispatch d where d.lane = l.value and d.priority = p.value and d.due <= ?2)

-- name: shares_due
-- The same for one lane, tenant by tenant: from each to the next, whatever each has waiting.
with recursive each(tenant) as (
    select (select min(tenant) from semel_dispatch where lane = ?1 and due is not null)
    union all
    select (select min(d.tenant) from semel_dispatch d where d.lane = ?1 and d.tenant > e.tenant and d.due is not null)
    from each e where e.tenant is not null
)
select e.tenant, p.value from each e cross join json_each('[0,1,2,3,4,5,6,7,8,9]') p
where exists (select 1 from semel_dispatch d
              where d.lane = ?1 and d.tenant = e.tenant and d.priority = p.value and d.due <= ?2)

-- name: dispatches_due
-- One priority of one lane, the longest due first. Behind an older one of its order key nothing is due. It reads as many as
-- ?5 and no more: thousands may wait behind one.
select near.id, near.taken, near.standing, near.request, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation,
       n.content, n.options, n.added, near.due, near.place
from (select * from semel_dispatch i indexed by semel_dispatch_due
      where i.lane = ?1 and i.priority = ?2 and i.due <= ?3 order by i.due, i.place limit ?5) near
     join semel_notification n on n.id = near.id
where near.ordered is null
      or not exists (select 1 from semel_dispatch o where o.ordered = near.ordered and o.place < near.place)
order by near.due, near.place limit ?4

-- name: share_due
-- The same of one tenant.
select near.id, near.taken, near.standing, near.request, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation,
       n.content, n.options, n.added, near.due, near.place
from (select * from semel_dispatch i indexed by semel_dispatch_share
      where i.lane = ?1 and i.priority = ?2 and i.due <= ?3 and i.tenant = ?6 order by i.due, i.place limit ?5) near
     join semel_notification n on n.id = near.id
where near.ordered is null
      or not exists (select 1 from semel_dispatch o where o.ordered = near.ordered and o.place < near.place)
order by near.due, near.place limit ?4

-- name: set_aside
-- Where ?5 and more were looked at in vain, those that stand behind older ones are not looked at again until these are over:
-- see semel_dispatch_over.
with seen as materialized (
    select i.id, i.ordered, i.place from semel_dispatch i indexed by semel_dispatch_due
    where i.lane = ?1 and i.priority = ?2 and i.due <= ?3 order by i.due, i.place limit ?4
)
update semel_dispatch set behind = due, due = null
where (select count(*) from seen) >= ?5
      and id in (select near.id from seen near where near.ordered is not null and exists (
                     select 1 from semel_dispatch o where o.ordered = near.ordered and o.place < near.place))
returning 1

-- name: set_aside_of_share
with seen as materialized (
    select i.id, i.ordered, i.place from semel_dispatch i indexed by semel_dispatch_share
    where i.lane = ?1 and i.priority = ?2 and i.due <= ?3 and i.tenant = ?6 order by i.due, i.place limit ?4
)
update semel_dispatch set behind = due, due = null
where (select count(*) from seen) >= ?5
      and id in (select near.id from seen near where near.ordered is not null and exists (
                     select 1 from semel_dispatch o where o.ordered = near.ordered and o.place < near.place))
returning 1

-- name: take_dispatches
update semel_dispatch set token = v.column2, taken = 1, due = v.column3 from (values {rows}) v where id = v.column1

-- name: put_off_dispatches
update semel_dispatch set due = v.column2 from (values {rows}) v where id = v.column1

-- name: rates
select provider, tenant, next from semel_rate where provider = ?1

-- name: set_rates
insert into semel_rate (provider, tenant, next) values {rows} on conflict do update set next = excluded.next

-- name: dispatches_held
select id, token, taken, state from semel_dispatch where id in ({keys})

-- name: guards
-- One that was forgotten meanwhile was sent. What has its id now was added after the guard was passed: it is another.
select g.k, g.id, g.at, iif(n.added <= g.at, n.state, 'accepted'), g.before from semel_guard g
left join semel_notification n on n.id = g.id
where g.k in ({keys})

-- name: set_guards
insert into semel_guard (k, id, at, until, before) values {rows}
on conflict do update set id = excluded.id, at = excluded.at, until = max(until, excluded.until), before = excluded.before

-- name: guards_passed
select k, id, at, before from semel_guard where k in ({keys})

-- name: added_and_standing
select id, added, state from semel_notification where id in ({keys})

-- name: forget_guards
delete from semel_guard where k in ({keys})

-- name: cross_dispatches
update semel_dispatch set state = 'sending', lane = v.column3, standing = v.column4, request = ifnull(request, v.column5)
from (values {rows}) v where id = v.column1 and token = v.column2 and taken = 1

-- name: end_dispatches
delete from semel_dispatch where id in ({keys})

-- name: set_dispatches
update semel_dispatch set taken = 0, due = v.column3, behind = null, state = v.column4, lane = v.column5, standing = v.column6,
                          request = iif(v.column7, request, null)
from (values {rows}) v where id = v.column1 and token = v.column2 and taken = 1

-- name: set_notifications
update semel_notification
set state = v.column2, reason = v.column3, provider = v.column4, reference = ifnull(v.column5, reference),
    possible = v.column6, changed = v.column7
from (values {rows}) v where id = v.column1

-- name: suppress_notifications
update semel_notification set state = 'suppressed', reason = v.column2, by_id = v.column3, changed = v.column4
from (values {rows}) v where id = v.column1

-- name: begin_attempts
insert into semel_attempt (id, token, outcome, number, provider, crossed, ended, evidence, by)
values {rows} on conflict do nothing

-- name: forget_beginnings
-- What came of them is written beside.
delete from semel_attempt where outcome = '' and (id, token) in (values {rows})

-- name: add_attempts
insert into semel_attempt (id, token, outcome, number, provider, crossed, ended, evidence, reference, by)
values {rows} on conflict do nothing

-- name: attempts_known
select id, token from semel_attempt where outcome <> '' and (id, token) in (values {rows})

-- name: witnessed_by_id
select id, state, provider, possible, tenant, recipient, kind, options, content is null from semel_notification
where id = ?1

-- name: referred_to
-- Whose message this is, as far as its provider has told. Two may share one: nobody knows which of them is meant.
select distinct id from semel_attempt where reference = ?1 and provider = ?2 limit 2

-- name: referred_to_by_another
select id from semel_attempt where reference = ?1 and provider = ?2 and id <> ?3 limit 1

-- name: referred_to_otherwise
select 1 from semel_attempt where id = ?1 and reference is not null and (provider, reference) <> (?2, ?3) limit 1

-- name: sent_anew
-- By one provider, because somebody or a look-up said that its first message was none.
select 1 from semel_attempt where id = ?1 and outcome in ('absent', 'not_sent') and provider = ?2 limit 1

-- name: sent_twice
update semel_notification set possible = 1 where id = ?1 and possible = 0

-- name: status_by_recipient
-- The last column: it is failed, and given up in doubt. By a person, or by its policy, or it was sent twice before.
select id, state, changed, provider, reference, reason,
       state = 'failed' and (possible > 0 or exists (
           select 1 from semel_attempt a where a.id = semel_notification.id
                  and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed > 0))))
from semel_notification where who in (?1, ?2) and kind = ?3
order by added desc limit ?4

-- name: status_by_recipient_alone
select id, state, changed, provider, reference, reason,
       state = 'failed' and (possible > 0 or exists (
           select 1 from semel_attempt a where a.id = semel_notification.id
                  and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed > 0))))
from semel_notification where who in (?1, ?2)
order by added desc limit ?3

-- name: status_by_key
select id, state, changed, provider, reference, reason,
       state = 'failed' and (possible > 0 or exists (
           select 1 from semel_attempt a where a.id = semel_notification.id
                  and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed > 0))))
from semel_notification where tenant = ?1 and key = ?2
order by added desc limit ?3

-- name: shown
select n.id, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation, n.content, n.options, n.state, n.reason,
       n.provider, n.added, n.changed, coalesce(d.due, d.behind, 0), n.possible, n.by_id, d.standing,
       coalesce(d.taken, 0)
from semel_notification n left join semel_dispatch d on d.id = n.id

-- name: attempts_of
select number, provider, crossed, ended, outcome, evidence, ifnull(reference, ''), by from semel_attempt
where id = ? order by iif(ended = 0, crossed, ended), token = 0, token, outcome

-- name: decided_upon
select n.state, n.tenant, n.recipient, n.kind, n.provider, n.options, n.possible, n.channel, d.taken, d.due, d.standing
from semel_notification n left join semel_dispatch d on d.id = n.id where n.id = ?

-- name: move_dispatch
-- A person's word counts whoever has it in hand: the token moves on.
update semel_dispatch set token = ?2, taken = 0, due = ?3, behind = null, state = ?4, standing = ?5 where id = ?1

-- name: erasable
select n.id, n.state, d.taken, d.due, d.standing from semel_notification n left join semel_dispatch d on d.id = n.id
where n.who in (?1, ?2) and n.content is not null

-- name: erase_notifications
update semel_notification set recipient = '', content = null, fp = x'', options = x'7b7d', reason = '' where id in ({keys})

-- name: erase_attempts
update semel_attempt set evidence = '' where id in ({keys})

-- name: backlog
select g.lane, g.state, g.count, n.added
from (select state, lane, count(*) as count, min(place) as place from semel_dispatch group by state, lane) g
     join semel_dispatch d on d.state = g.state and d.lane = g.lane and d.place = g.place
     join semel_notification n on n.id = d.id
order by g.lane, g.state

-- name: contents_over
select id from semel_notification
where content is not null and state not in ('pending', 'sending', 'uncertain') and changed <= ?1 order by changed limit ?2

-- name: identities_over
select id from semel_notification where content is null and changed <= ?1 order by changed limit ?2

-- name: forget_notifications
delete from semel_notification where id in ({keys})

-- name: forget_attempts
delete from semel_attempt where id in ({keys})

-- name: forget_old_guards
delete from semel_guard where k in (select k from semel_guard where until <= ?1 order by until limit ?2) returning 1
