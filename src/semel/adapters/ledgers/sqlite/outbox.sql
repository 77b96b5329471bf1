-- The outbox's statements, by name. Every write after a take has the token in its WHERE.

-- name: known_notifications
select id, fp, state from semel_notification where id in ({keys})

-- name: add_notifications
insert into semel_notification (id, tenant, key, kind, recipient, who, channel, generation, content, fp, options, state,
                                reason, provider, possible, added, changed)
values {rows} on conflict do nothing

-- name: add_dispatches
insert into semel_dispatch (id, lane, priority, due, token, taken, state, standing, ordered, place)
values {rows}

-- name: dispatches_due
-- One priority of one lane, the longest due first. Behind an older one of its order key nothing is due.
select d.id, d.taken, d.standing, d.request, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation, n.content,
       n.options
from semel_dispatch d join semel_notification n on n.id = d.id
where d.lane = ?1 and d.priority = ?2 and d.due <= ?3
      and (d.ordered is null or not exists (select 1 from semel_dispatch o where o.ordered = d.ordered and o.place < d.place))
order by d.due, d.place limit ?4

-- name: dispatch_due_at_all
select 1 from json_each(?1) wanted cross join semel_dispatch d
where d.lane = wanted.value and d.priority between 0 and 9 and d.due <= ?2 limit 1

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
select g.k, g.id, g.at, ifnull(n.state, 'accepted') from semel_guard g left join semel_notification n on n.id = g.id
where g.k in ({keys})

-- name: set_guards
insert into semel_guard (k, id, at, until) values {rows}
on conflict do update set id = excluded.id, at = excluded.at, until = max(until, excluded.until)

-- name: forget_guards
delete from semel_guard where k in ({keys}) and id in ({others})

-- name: cross_dispatches
update semel_dispatch set state = 'sending', lane = v.column3, standing = v.column4, request = ifnull(request, v.column5)
from (values {rows}) v where id = v.column1 and token = v.column2 and taken = 1

-- name: end_dispatches
delete from semel_dispatch where id in ({keys})

-- name: set_dispatches
update semel_dispatch set taken = 0, due = v.column3, state = v.column4, lane = v.column5, standing = v.column6,
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
select 1 from semel_attempt where id = ?1 and token = ?2 and outcome <> '' limit 1

-- name: witnessed_by_id
select id, state, provider, possible, tenant, recipient, kind, options from semel_notification where id = ?1

-- name: witnessed_by_reference
select id, state, provider, possible, tenant, recipient, kind, options from semel_notification where reference = ?1 and provider = ?2

-- name: status_by_recipient
select id, state, changed, provider, reference, reason from semel_notification where who = ?1 and kind = ?2
order by added desc limit ?3

-- name: status_by_recipient_alone
select id, state, changed, provider, reference, reason from semel_notification where who = ?1
order by added desc limit ?2

-- name: status_by_key
select id, state, changed, provider, reference, reason from semel_notification where tenant = ?1 and key = ?2
order by added desc limit ?3

-- name: shown
select n.id, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation, n.content, n.options, n.state, n.reason,
       n.provider, n.added, n.changed, ifnull(d.due, 0), n.possible, n.by_id
from semel_notification n left join semel_dispatch d on d.id = n.id

-- name: attempts_of
select number, provider, crossed, ended, outcome, evidence, ifnull(reference, ''), by from semel_attempt
where id = ? order by iif(ended = 0, crossed, ended), token = 0, token, outcome

-- name: decided_upon
select n.state, n.tenant, n.recipient, n.kind, n.provider, n.options, n.possible, n.channel, d.taken, d.due, d.standing
from semel_notification n left join semel_dispatch d on d.id = n.id where n.id = ?

-- name: move_dispatch
-- A person's word counts whoever has it in hand: the token moves on.
update semel_dispatch set token = ?2, taken = 0, due = ?3, state = ?4, standing = ?5 where id = ?1

-- name: erasable
select n.id, n.state, d.taken, d.due, d.standing from semel_notification n left join semel_dispatch d on d.id = n.id
where n.who = ?1 and n.content is not null

-- name: erase_notifications
update semel_notification set recipient = '', content = null, fp = x'', options = x'7b7d', reason = '' where id in ({keys})

-- name: erase_attempts
update semel_attempt set evidence = '' where id in ({keys})
