-- Statements of the inbox. Every write after a take has the id and the token in its WHERE. They are pairs, because one
-- batch ends items of several workers. State 1 is waiting, 2 is taken.

-- name: inbox_keys
-- Items that wait or are taken, and items that were given up, with their reason.
select q.digest, q.fingerprint, q.order_position, iif(i.id is null, ifnull(r.result, x''), null), ifnull(r.expires_ms, 0)
from semel_inbox_key q left join semel_inbox i on i.id = q.id left join semel_record r on r.id = q.id
where q.digest in ({keys})

-- name: add_inbox_items
insert into semel_inbox (id, digest, digests, lane, token, state, due_ms, expired_leases, accepted_ms, retention_ms, tenant,
                         only_handler, key_text)
values {rows}

-- name: add_inbox_events
insert into semel_inbox_event values {rows}

-- name: add_inbox_keys
insert into semel_inbox_key values {rows}

-- name: due_inbox_items
-- The longest due first, in the order of the index; of equal times the first accepted.
select i.id, i.due_ms, i.lane, i.tenant, i.only_handler, i.expired_leases + (i.state = 2), i.accepted_ms, e.event,
       e.decode_options, e.traceparent, i.digest
from semel_inbox i join semel_inbox_event e on e.id = i.id
where i.lane = ? and i.due_ms <= ? order by i.due_ms, i.state, i.accepted_ms, i.id limit ?

-- name: is_due
-- Read without a lock, so that idle workers do not wait for each other.
select 1 from json_each(?1) lanes cross join semel_inbox i on i.lane = lanes.value and i.due_ms <= ?2 limit 1

-- name: take_inbox_items
update semel_inbox set token = v.column2, expired_leases = expired_leases + (state = 2), state = 2, due_ms = v.column3
from (values {rows}) v where id = v.column1

-- name: finish_inbox_items
delete from semel_inbox where id in (
    select i.id from (values {rows}) v cross join semel_inbox i on i.id = v.column1 and i.token = v.column2
    where i.state = 2
)
returning id, token, digest, digests

-- name: delete_inbox_events
delete from semel_inbox_event where id in ({keys})

-- name: delete_inbox_keys
delete from semel_inbox_key where (digest, id) in (values {rows})

-- name: postpone_inbox_items
update semel_inbox set state = 1, due_ms = v.column3, reason = v.column4, expired_leases = 0
from (values {rows}) v where id = v.column1 and token = v.column2 and state = 2
returning id, token

-- name: give_up_inbox_item
delete from semel_inbox where id = ? and token = ? and state = 2
returning id, digest, digests, expired_leases, retention_ms, tenant, lane, only_handler, key_text

-- name: add_given_up_event
insert into semel_dead_letter (id, event, decode_options, lane, only_handler)
select id, event, decode_options, ?2, ?3 from semel_inbox_event where id = ?1

-- name: inbox_depths
select lane, sum(state = 1 or due_ms <= ?1), sum(state = 2 and due_ms > ?1), min(accepted_ms) from semel_inbox group by lane
