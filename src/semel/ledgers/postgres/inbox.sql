-- The inbox's statements, by name. What they do stands in schema/002_inbox.sql.

-- name: accept
select now, ids, fresh, known_k, known_n, known_id, known_fp, known_place, known_outcome, known_reason
from semel.accept_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: known
select k, n, id, fp, place, outcome, reason from semel.known_1($1, $2)

-- name: next_numbers
select nextval('semel.token') from generate_series(1, $1::integer)

-- name: lock_inbox_keys
select k, n from semel.inbox_key where k = any ($1::bytea[]) order by k, n for update

-- name: add_inbox_keys
insert into semel.inbox_key (k, n, id, fp, place)
select * from unnest($1::bytea[], $2::integer[], $3::bigint[], $4::bytea[], $5::bytea[])
on conflict do nothing returning k

-- name: add_to_inbox
insert into semel.inbox (id, token, due, accepted, keep, lapses, state, k, keys, lane, tenant, only_handler, text, event,
                         reading, trace)
select id, 0, $1::bigint, $1, keep, 0, 1, k, keys, lane, tenant, '', text, event, reading, trace
from unnest($2::bigint[], $3::bytea[], $4::bytea[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::bytea[],
            $10::bytea[], $11::text[]) a(id, k, keys, lane, keep, tenant, text, event, reading, trace)

-- name: is_due
-- The time is asked for once, so that the index is entered by it.
select 1 from unnest($1::text[]) w(lane)
where exists (select from semel.inbox i where i.lane = w.lane and i.due <= (select coalesce($2, semel.now_ms()))) limit 1

-- name: take
select id, token, lane, event, tenant, reading, only_handler, trace, lapses, accepted, k from semel.take_1($1, $2, $3, $4)

-- name: finish
select id, token from semel.finish_1($1, $2, $3, $4, $5, $6)

-- name: depths
select lane, waiting, taken, oldest from semel.depths_1($1)
