-- The outbox. The functions are in schema/001_outbox.sql and schema/001_relay.sql.

-- name: add_notifications
select ordinal, status, state
from semel.add_notifications($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)

-- name: take_notifications
select taken_ms, id, token, slot_ms, vanished, delivery_state, request, tenant, key, kind, recipient, channel, generation,
       content, options, added_ms
from semel.take_notifications($1, $2, $3, $4, $5, $6, $7)

-- name: postpone_dispatches
-- A dispatch that another relay left behind stays taken.
update semel.dispatch d set taken = u.vanished, due_ms = u.due_ms
from unnest($1::bytea[], $2::bigint[], $3::boolean[], $4::bigint[]) u(id, token, vanished, due_ms)
where d.id = u.id and d.token = u.token and d.id = any ($1::bytea[])

-- name: cross
select ordinal, verdict, blocked_by from semel.cross($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: record_results
select * from semel.record_results(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)

-- name: apply_delivery_reports
select ordinal, state from semel.apply_delivery_reports($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: status_by_recipient
-- One index scan for each digest that the recipient may be stored under. The last column: it failed, and may have been sent.
-- It was given up while uncertain, by an operator or by its policy, or was sent twice before.
select n.id, n.state, n.changed_ms, n.provider, n.reference, n.reason, n.in_doubt
from unnest($1::bytea[]) w cross join lateral (
    select n.*, n.state = 'failed' and (n.possible_duplicates > 0 or exists (
               select from semel.attempt a where a.id = n.id
                      and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed_ms > 0)))) as in_doubt
    from semel.notification n where n.recipient_digest = w and n.kind = $2 order by n.added_ms desc limit $3
) n
order by n.added_ms desc limit $3

-- name: status_by_recipient_of_any_kind
select n.id, n.state, n.changed_ms, n.provider, n.reference, n.reason, n.in_doubt
from unnest($1::bytea[]) w cross join lateral (
    select n.*, n.state = 'failed' and (n.possible_duplicates > 0 or exists (
               select from semel.attempt a where a.id = n.id
                      and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed_ms > 0)))) as in_doubt
    from semel.notification n where n.recipient_digest = w order by n.added_ms desc limit $2
) n
order by n.added_ms desc limit $2

-- name: status_by_key
select id, state, changed_ms, provider, reference, reason,
       state = 'failed' and (possible_duplicates > 0 or exists (
           select from semel.attempt a where a.id = n.id
                  and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed_ms > 0))))
from semel.notification n where tenant = $1 and key = $2
order by added_ms desc limit $3

-- name: notification_view
select n.id, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation, n.content, n.options::text, n.state, n.reason,
       n.provider, n.added_ms, n.changed_ms, coalesce(d.due_ms, d.blocked_due_ms, 0), n.possible_duplicates,
       n.suppressed_by, d.delivery_state, coalesce(d.taken, false)
from semel.notification n left join semel.dispatch d on d.id = n.id

-- name: attempts_of_notification
-- The current attempt is stored with its dispatch.
select number, provider, crossed_ms, ended_ms, outcome, evidence, reference, decided_by
from (
    select number, provider, crossed_ms, ended_ms, outcome, evidence, coalesce(reference, '') as reference, decided_by, token,
           report
    from semel.attempt where id = $1
    union all
    select number, lane, crossed_ms, 0, '', '', '', '', token, '' from semel.dispatch where id = $1 and state = 'sending'
) a
order by case when ended_ms = 0 then crossed_ms else ended_ms end, token = 0, token, report

-- name: lock_dispatches
-- In the order of their ids. A concurrent decision waits here and finds the remaining ones.
select id, taken and due_ms > coalesce($2, semel.now_ms()), state, delivery_state, coalesce($2, semel.now_ms())
from semel.dispatch where id = any ($1::bytea[]) order by id for update

-- name: decide_notification
-- An operator's decision applies even if a relay has the notification: the token changes.
with decision as (
    insert into semel.attempt (id, token, outcome, provider, crossed_ms, ended_ms, evidence, decided_by)
    select n.id, nextval('semel.token'), $2, n.provider, $10, $3, $4, $5 from semel.notification n where n.id = $1
    returning token
), interrupted as (   -- its outcome stays unknown
    insert into semel.attempt (id, token, number, provider, crossed_ms)
    select d.id, d.token, d.number, d.lane, d.crossed_ms from semel.dispatch d where d.id = $1 and d.state = 'sending'
    on conflict do nothing
), live as (
    update semel.dispatch d
    set token = w.token, taken = false, due_ms = $8::bigint, blocked_due_ms = null, state = $6, delivery_state = $9
    from decision w where d.id = $1 and $6 in ('pending', 'uncertain')
), ended as (
    delete from semel.dispatch where id = $1 and $6 not in ('pending', 'uncertain')
)
update semel.notification n
set state = $6, reason = $7, changed_ms = $3, ended_as = case when $6 in ('failed', 'cancelled', 'expired') then $6 end
where n.id = $1 and exists (select from decision)

-- name: free_guards
select semel.free_guards($1::bytea[])

-- name: erasable_notifications
select id from semel.notification where recipient_digest = any ($1::bytea[]) and content is not null

-- name: erase_notifications
update semel.notification set recipient = '', content = null, options = '{}', reason = ''
where id = any ($1::bytea[]) and content is not null returning id

-- name: erase_attempts
update semel.attempt set evidence = '' where id = any ($1::bytea[])

-- name: backlog
-- Each oldest dispatch is looked up by itself: a plan made before the tables grew would join all of them.
with waiting as materialized (
    select lane, state, count(*) as count, min(sequence) as oldest from semel.dispatch group by lane, state
), oldest as materialized (
    select d.sequence, d.id from semel.dispatch d where d.sequence = any (array(select w.oldest from waiting w))
)
select w.lane, w.state, w.count, (select n.added_ms from semel.notification n where n.id = o.id)
from waiting w join oldest o on o.sequence = w.oldest
order by w.lane, w.state

-- name: purge_notifications
select semel.purge_notifications($1, $2, $3, $4)
