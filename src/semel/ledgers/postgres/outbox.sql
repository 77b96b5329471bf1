-- The outbox's statements, by name. What relays ask stands in functions: see schema/004_outbox.sql to 007_forgetting.sql.

-- name: add_notifications
select at, status, state
from semel.add_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)

-- name: take_dispatches
select now, id, token, slot, vanished, standing, request, tenant, key, kind, recipient, channel, generation, content, options,
       added
from semel.carry_2($1, $2, $3, $4, $5, $6, $7)

-- name: put_off_dispatches
-- What another relay has left behind stays taken.
update semel.dispatch d set taken = u.vanished, due = u.due
from unnest($1::bytea[], $2::bigint[], $3::boolean[], $4::bigint[]) u(id, token, vanished, due)
where d.id = u.id and d.token = u.token and d.id = any ($1::bytea[])

-- name: cross_dispatches
select at, gate, by from semel.cross_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: record_dispatches
select * from semel.record_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)

-- name: witness_notifications
select at, state from semel.witness_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: status_by_recipient
-- For each digest that the recipient may be stored under, one read of an index. The last column: it is failed, and given up
-- in doubt. By a person, or by its policy, or it was sent twice before.
select n.id, n.state, n.changed, n.provider, n.reference, n.reason, n.in_doubt
from unnest($1::bytea[]) w cross join lateral (
    select n.*, n.state = 'failed' and (n.possible > 0 or exists (
               select from semel.attempt a where a.id = n.id
                      and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed > 0)))) as in_doubt
    from semel.notification n where n.who = w and n.kind = $2 order by n.added desc limit $3
) n
order by n.added desc limit $3

-- name: status_by_recipient_alone
select n.id, n.state, n.changed, n.provider, n.reference, n.reason, n.in_doubt
from unnest($1::bytea[]) w cross join lateral (
    select n.*, n.state = 'failed' and (n.possible > 0 or exists (
               select from semel.attempt a where a.id = n.id
                      and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed > 0)))) as in_doubt
    from semel.notification n where n.who = w order by n.added desc limit $2
) n
order by n.added desc limit $2

-- name: status_by_key
select id, state, changed, provider, reference, reason,
       state = 'failed' and (possible > 0 or exists (
           select from semel.attempt a where a.id = n.id
                  and (a.outcome = 'policy' or (a.outcome = 'given_up' and a.crossed > 0))))
from semel.notification n where tenant = $1 and key = $2
order by added desc limit $3

-- name: shown
select n.id, n.tenant, n.key, n.kind, n.recipient, n.channel, n.generation, n.content, n.options::text, n.state, n.reason,
       n.provider, n.added, n.changed, coalesce(d.due, d.behind, 0), n.possible, n.by_id, d.standing,
       coalesce(d.taken, false)
from semel.notification n left join semel.dispatch d on d.id = n.id

-- name: attempts_of
-- The one that is under way stands with its dispatch.
select number, provider, crossed, ended, outcome, evidence, reference, by
from (
    select number, provider, crossed, ended, outcome, evidence, coalesce(reference, '') as reference, by, token, word
    from semel.attempt where id = $1
    union all
    select number, lane, crossed, 0, '', '', '', '', token, '' from semel.dispatch where id = $1 and state = 'sending'
) a
order by case when ended = 0 then crossed else ended end, token = 0, token, word

-- name: lock_dispatches
-- In one order everywhere; who comes second waits here, and finds what is left.
select id, taken and due > coalesce($2, semel.now_ms()), state, standing, coalesce($2, semel.now_ms())
from semel.dispatch where id = any ($1::bytea[]) order by id for update

-- name: decide_notification
-- A person's word counts whoever has it in hand: the token moves on.
with word as (
    insert into semel.attempt (id, token, outcome, provider, crossed, ended, evidence, by)
    select n.id, nextval('semel.token'), $2, n.provider, $10, $3, $4, $5 from semel.notification n where n.id = $1
    returning token
), left_behind as (   -- nobody will say what came of it
    insert into semel.attempt (id, token, number, provider, crossed)
    select d.id, d.token, d.number, d.lane, d.crossed from semel.dispatch d where d.id = $1 and d.state = 'sending'
    on conflict do nothing
), live as (
    update semel.dispatch d set token = w.token, taken = false, due = $8::bigint, behind = null, state = $6, standing = $9
    from word w where d.id = $1 and $6 in ('pending', 'uncertain')
), over as (
    delete from semel.dispatch where id = $1 and $6 not in ('pending', 'uncertain')
)
update semel.notification n
set state = $6, reason = $7, changed = $3, ended = case when $6 in ('failed', 'cancelled', 'expired') then $6 end
where n.id = $1 and exists (select from word)

-- name: free_guards
select semel.free_guards_1($1::bytea[])

-- name: erasable
select id from semel.notification where who = any ($1::bytea[]) and content is not null

-- name: erase_notifications
update semel.notification set recipient = '', content = null, options = '{}', reason = ''
where id = any ($1::bytea[]) and content is not null returning id

-- name: erase_attempts
update semel.attempt set evidence = '' where id = any ($1::bytea[])

-- name: backlog
-- Each oldest one is looked up by itself: a plan of before the tables grew would join all of them.
with waiting as materialized (
    select lane, state, count(*) as count, min(place) as oldest from semel.dispatch group by lane, state
), oldest as materialized (
    select d.place, d.id from semel.dispatch d where d.place = any (array(select w.oldest from waiting w))
)
select w.lane, w.state, w.count, (select n.added from semel.notification n where n.id = o.id)
from waiting w join oldest o on o.place = w.oldest
order by w.lane, w.state

-- name: purge_notifications
select semel.purge_1($1, $2, $3, $4)
