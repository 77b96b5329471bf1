-- The inbox. The functions are in schema/001_inbox.sql.

-- name: accept
select accepted_ms, ids, accepted, known_digests, known_numbers, known_ids, known_fingerprints, known_positions,
       known_outcomes, known_reasons
from semel.accept($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: known_keys
select digest, number, id, fingerprint, order_position, outcome, reason from semel.known_keys($1, $2)

-- name: next_ids
select nextval('semel.token') from generate_series(1, $1::integer)

-- name: lock_inbox_keys
select digest, number from semel.inbox_key where digest = any ($1::bytea[]) order by digest, number for update

-- name: add_inbox_keys
insert into semel.inbox_key (digest, number, id, fingerprint, order_position)
select * from unnest($1::bytea[], $2::integer[], $3::bigint[], $4::bytea[], $5::bytea[])
on conflict do nothing returning digest

-- name: add_inbox_items
insert into semel.inbox (id, token, due_ms, accepted_ms, retention_ms, expired_leases, state, digest, digests, lane, tenant,
                         only_handler, key_text, event, decode_options, traceparent)
select id, 0, $1::bigint, $1, retention_ms, 0, 1, digest, digests, lane, tenant, '', key_text, event, decode_options,
       traceparent
from unnest($2::bigint[], $3::bytea[], $4::bytea[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::bytea[],
            $10::bytea[], $11::text[])
     a(id, digest, digests, lane, retention_ms, tenant, key_text, event, decode_options, traceparent)

-- name: is_inbox_item_due
-- The time is a subquery, so that it is computed once and the index is entered with it.
select 1 from unnest($1::text[]) w(lane)
where exists (
    select from semel.inbox i where i.lane = w.lane and i.due_ms <= (select coalesce($2, semel.now_ms()))
) limit 1

-- name: take_inbox_items
select id, token, lane, event, tenant, decode_options, only_handler, traceparent, expired_leases, accepted_ms, digest
from semel.take_inbox_items($1, $2, $3, $4)

-- name: finish_inbox_items
select id, token from semel.finish_inbox_items($1, $2, $3, $4, $5, $6)

-- name: inbox_depths
select lane, waiting, taken, oldest_ms from semel.inbox_depths($1)
