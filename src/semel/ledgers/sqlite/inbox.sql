-- The inbox's statements, by name. Every write after a take has id and token in its WHERE: pairs of them, since one batch
-- ends letters of several takers. State 1 waits, 2 is taken.

-- name: letters_by_key
-- What the inbox knows of keys: what waits or is taken, and what it gave up, with its reason until its retention ends.
select q.k, q.fp, q.place, iif(i.id is null, ifnull(r.result, x''), null), ifnull(r.expires, 0)
from semel_inbox_key q left join semel_inbox i on i.id = q.id left join semel_record r on r.id = q.id
where q.k in ({keys})

-- name: add_to_inbox
insert into semel_inbox (id, k, keys, lane, token, state, due, lapses, accepted, keep, tenant, only_handler, text)
values {rows}

-- name: add_events
insert into semel_inbox_event values {rows}

-- name: add_keys
insert into semel_inbox_key values {rows}

-- name: due
-- In the order of the index: the longest due first, and of what fell due together the first accepted.
select i.id, i.due, i.lane, i.tenant, i.only_handler, i.lapses + (i.state = 2), i.accepted, e.event, e.reading, e.trace,
       i.k
from semel_inbox i join semel_inbox_event e on e.id = i.id
where i.lane = ? and i.due <= ? order by i.due, i.state, i.accepted, i.id limit ?

-- name: is_due
-- Whether a take would find anything. Read without a lock, so that idle takers do not wait for each other.
select 1 from json_each(?1) wanted cross join semel_inbox i on i.lane = wanted.value and i.due <= ?2 limit 1

-- name: take
update semel_inbox set token = v.column2, lapses = lapses + (state = 2), state = 2, due = v.column3
from (values {rows}) v where id = v.column1

-- name: finish
delete from semel_inbox where id in (
    select i.id from (values {rows}) v cross join semel_inbox i on i.id = v.column1 and i.token = v.column2
    where i.state = 2
)
returning id, token, k, keys

-- name: forget_events
delete from semel_inbox_event where id in ({keys})

-- name: forget_keys
-- The plus: each k is looked up once, not once with every id. Whatever has one of these ids is to go.
delete from semel_inbox_key where k in ({keys}) and +id in ({others})

-- name: forget_key
delete from semel_inbox_key where k = ? and id = ?

-- name: postpone
update semel_inbox set state = 1, due = v.column3, reason = v.column4, lapses = 0   -- somebody lived to say so
from (values {rows}) v where id = v.column1 and token = v.column2 and state = 2
returning id, token

-- name: give_up
delete from semel_inbox where id = ? and token = ? and state = 2
returning id, k, keys, lapses, keep, tenant, lane, only_handler, text

-- name: keep_given_up
insert into semel_letter (id, event, reading, lane, only_handler)
select id, event, reading, ?2, ?3 from semel_inbox_event where id = ?1

-- name: depths
select lane, sum(state = 1 or due <= ?1), sum(state = 2 and due > ?1), min(accepted) from semel_inbox group by lane
