-- Statements of the outbox. Every write after a take has the token in its WHERE.

-- name: known_notifications
select id, fingerprint, state from semel_notification where id in ({keys})

-- name: add_notifications
insert into semel_new_notification (id, tenant, key, kind, recipient, recipient_digest, channel, generation, content,
                                    fingerprint, options, added_ms, lane, priority, delivery_state, order_digest)
values {rows}

-- name: due_lanes
-- The lanes and priorities with due dispatches.
select l.value, p.value from json_each(?1) l cross join json_each('[0,1,2,3,4,5,6,7,8,9]') p
where exists (select 1 from semel_dispatch d where d.lane = l.value and d.priority = p.value and d.due_ms <= ?2)

-- name: due_tenants
-- The tenants and priorities of one lane with due dispatches. Reads one index entry for each tenant.
with recursive each(tenant) as (
    select (select min(tenant) from semel_dispatch where lane = ?1 and due_ms is not null)
    union all
    select (select min(d.tenant) from semel_dispatch d where d.lane = ?1 and d.tenant > e.tenant and d.due_ms is not null)
    from each e where e.tenant is not null
)
select e.tenant, p.value from each e cross join json_each('[0,1,2,3,4,5,6,7,8,9]') p
where exists (select 1 from semel_dispatch d
              where d.lane = ?1 and d.tenant = e.tenant and d.priority = p.value and d.due_ms <= ?2)

-- name: due_dispatches
-- One priority of one lane, or of one of its tenants, the longest due first. A dispatch is not due while an older one of
-- its order key exists. The query examines at most ?5 dispatches: thousands may wait behind one.
select near.id, near.taken, near.delivery_state, near.request, n.tenant, n.key, n.kind, n.recipient, n.channel,
       n.generation, n.content, n.options, n.added_ms, near.due_ms, near.sequence
from (select * from semel_dispatch i indexed by {index}
      where i.lane = ?1 and i.priority = ?2 and i.due_ms <= ?3 {of_tenant} order by i.due_ms, i.sequence limit ?5) near
     join semel_notification n on n.id = near.id
where near.order_digest is null
      or not exists (select 1 from semel_dispatch o where o.order_digest = near.order_digest and o.sequence < near.sequence)
order by near.due_ms, near.sequence limit ?4

-- name: block_behind_older
-- If at least ?5 dispatches are due, those behind an older one of their order key are not examined again until
-- the trigger semel_release_next_in_order makes them due.
with examined as materialized (
    select i.id, i.order_digest, i.sequence from semel_dispatch i indexed by {index}
    where i.lane = ?1 and i.priority = ?2 and i.due_ms <= ?3 {of_tenant} order by i.due_ms, i.sequence limit ?4
)
update semel_dispatch set blocked_due_ms = due_ms, due_ms = null
where (select count(*) from examined) >= ?5
      and id in (select near.id from examined near where near.order_digest is not null and exists (
                     select 1 from semel_dispatch o
                     where o.order_digest = near.order_digest and o.sequence < near.sequence))
returning 1

-- name: take_dispatches
update semel_dispatch set token = v.column2, taken = 1, due_ms = v.column3 from (values {rows}) v where id = v.column1

-- name: postpone_dispatches
update semel_dispatch set due_ms = v.column2 from (values {rows}) v where id = v.column1

-- name: rates
select provider, tenant, next_ms from semel_rate where provider = ?1

-- name: set_rates
insert into semel_rate (provider, tenant, next_ms) values {rows} on conflict do update set next_ms = excluded.next_ms

-- name: dispatch_owners
select id, token, taken, state from semel_dispatch where id in ({keys})

-- name: guards
-- A notification that was purged was sent. If its id exists again, it was added after the guard was passed, and is
-- another notification.
select g.digest, g.id, g.passed_ms, iif(n.added_ms <= g.passed_ms, n.state, 'accepted'), g.earlier from semel_guard g
left join semel_notification n on n.id = g.id
where g.digest in ({keys})

-- name: set_guards
insert into semel_guard (digest, id, passed_ms, until_ms, earlier) values {rows}
on conflict do update set id = excluded.id, passed_ms = excluded.passed_ms, until_ms = max(until_ms, excluded.until_ms),
                          earlier = excluded.earlier

-- name: guard_passes
select digest, id, passed_ms, earlier from semel_guard where digest in ({keys})

-- name: added_and_state
select id, added_ms, state from semel_notification where id in ({keys})

-- name: delete_guards
delete from semel_guard where digest in ({keys})

-- name: cross_dispatches
update semel_dispatch
set state = 'sending', lane = v.column3, delivery_state = v.column4, request = ifnull(request, v.column5)
from (values {rows}) v where id = v.column1 and token = v.column2 and taken = 1

-- name: delete_dispatches
delete from semel_dispatch where id in ({keys})

-- name: set_dispatches
update semel_dispatch set taken = 0, due_ms = v.column3, blocked_due_ms = null, state = v.column4, lane = v.column5,
                          delivery_state = v.column6, request = iif(v.column7, request, null)
from (values {rows}) v where id = v.column1 and token = v.column2 and taken = 1

-- name: set_notifications
update semel_notification
set state = v.column2, reason = v.column3, provider = v.column4, reference = ifnull(v.column5, reference),
    possible_duplicates = v.column6, changed_ms = v.column7
from (values {rows}) v where id = v.column1

-- name: suppress_notifications
update semel_notification set state = 'suppressed', reason = v.column2, suppressed_by = v.column3, changed_ms = v.column4
from (values {rows}) v where id = v.column1

-- name: delete_crossed_attempts
-- The attempt is written again with its outcome.
delete from semel_attempt where outcome = '' and (id, token) in (values {rows})

-- name: add_attempts
insert into semel_attempt (id, token, outcome, number, provider, crossed_ms, ended_ms, evidence, reference, decided_by)
values {rows} on conflict do nothing

-- name: recorded_attempts
select id, token from semel_attempt where outcome <> '' and (id, token) in (values {rows})

-- name: reported_notification
select id, state, provider, possible_duplicates, tenant, recipient, kind, options, content is null
from semel_notification where id = ?1

-- name: notifications_of_reference
-- Two notifications with one reference cannot be told apart.
select distinct id from semel_attempt where reference = ?1 and provider = ?2 limit 2

-- name: another_notification_of_reference
select id from semel_attempt where reference = ?1 and provider = ?2 and id <> ?3 limit 1

-- name: has_another_reference
select 1 from semel_attempt where id = ?1 and reference is not null and (provider, reference) <> (?2, ?3) limit 1

-- name: was_sent_again
-- By this provider, after a look-up or an operator established that the first message was not sent.
select 1 from semel_attempt where id = ?1 and outcome in ('absent', 'not_sent') and provider = ?2 limit 1

-- name: mark_possible_duplicate
update semel_notification set possible_duplicates = 1 where id = ?1 and possible_duplicates = 0

-- name: status
-- The last column: it failed, but may have been sent. It was given up by an operator or by its policy after a crossing,
-- or it has possible duplicates.
select id, state, changed_ms, provider, reference, reason,
       state = 'failed' and (possible_duplicates > 0 or exists (
           select 1 from semel_attempt a where a.id = semel_notification.id
                  and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed_ms > 0))))
from semel_notification where {condition}
order by added_ms desc limit {limit}

-- name: notification_views
select n.id, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation, n.content, n.options, n.state, n.reason,
       n.provider, n.added_ms, n.changed_ms, coalesce(d.due_ms, d.blocked_due_ms, 0), n.possible_duplicates, n.suppressed_by,
       d.delivery_state, coalesce(d.taken, 0)
from semel_notification n left join semel_dispatch d on d.id = n.id

-- name: attempts_of_notification
select number, provider, crossed_ms, ended_ms, outcome, evidence, ifnull(reference, ''), decided_by from semel_attempt
where id = ? order by iif(ended_ms = 0, crossed_ms, ended_ms), token = 0, token, outcome

-- name: open_notification
select n.state, n.tenant, n.recipient, n.kind, n.provider, n.options, n.possible_duplicates, d.taken, d.due_ms,
       d.delivery_state
from semel_notification n join semel_dispatch d on d.id = n.id where n.id = ?

-- name: move_dispatch
-- The token changes, so a relay that has the dispatch can no longer write.
update semel_dispatch set token = ?2, taken = 0, due_ms = ?3, blocked_due_ms = null, state = ?4, delivery_state = ?5
where id = ?1

-- name: erasable
select n.id, n.state, d.taken, d.due_ms, d.delivery_state
from semel_notification n left join semel_dispatch d on d.id = n.id
where n.recipient_digest in (?1, ?2) and n.content is not null

-- name: erase_notifications
update semel_notification set recipient = '', content = null, fingerprint = x'', options = x'7b7d', reason = ''
where id in ({keys})

-- name: erase_attempts
update semel_attempt set evidence = '' where id in ({keys})

-- name: backlog
select g.lane, g.state, g.count, n.added_ms
from (select state, lane, count(*) as count, min(sequence) as sequence from semel_dispatch group by state, lane) g
     join semel_dispatch d on d.state = g.state and d.lane = g.lane and d.sequence = g.sequence
     join semel_notification n on n.id = d.id
order by g.lane, g.state

-- name: contents_over
select id from semel_notification
where content is not null and state not in ('pending', 'sending', 'uncertain') and changed_ms <= ?1
order by changed_ms limit ?2

-- name: identities_over
select id from semel_notification where content is null and changed_ms <= ?1 order by changed_ms limit ?2

-- name: delete_notifications
delete from semel_notification where id in ({keys})

-- name: delete_attempts
delete from semel_attempt where id in ({keys})

-- name: delete_old_guards
delete from semel_guard where digest in (select digest from semel_guard where until_ms <= ?1 order by until_ms limit ?2)
returning 1
