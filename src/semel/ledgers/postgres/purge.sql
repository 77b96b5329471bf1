-- The purge, in bounded steps. It deletes rows instead of dropping partitions, because a key must be unique in all of them.
-- Rows are examined in the order of their tokens, which is nearly the order of time and of the table's pages. The last
-- parameter is the time; null: the server's clock.

-- name: lock_purge_position
select value, digest from semel.meta where name = 'purge_position' for update

-- name: purge_keys
-- Examines $2 rows and deletes at most $3 of them: settled keys past their retention, and retries that were not claimed
-- again for their whole retention. A key with an expired lease is suspect, and stays. Dead letters have rows of their own.
with clock as (
    select coalesce($4::bigint, semel.now_ms()) as now_ms
), examined as (
    select t.digest, t.token,
           (t.state = 3 and t.until_ms <= c.now_ms) or (t.state = 2 and t.until_ms + t.retention_ms <= c.now_ms) as expired
    from semel.key t, clock c where t.token > $1 order by t.token limit $2
), chosen as (
    select digest, token from examined where expired order by token limit $3
), free as (
    -- A concurrent claim keeps its key: neither waits for the other.
    select t.digest, t.token from chosen o join semel.key t on t.digest = o.digest and t.token = o.token, clock c
    where (t.state = 3 and t.until_ms <= c.now_ms) or (t.state = 2 and t.until_ms + t.retention_ms <= c.now_ms)
    for update of t skip locked
), deleted as (
    delete from semel.key t using free f where t.digest = f.digest and t.token = f.token returning t.token
)
select (select count(*) from examined), (select max(token) from examined),
       (select count(*) from deleted), (select max(token) from chosen), (select count(*) from chosen)

-- name: purge_dead_letters
-- A decided dead letter is kept for its retention once more, as history. An undecided one stays until an operator decides.
delete from semel.dead_letter where id in (
    select id from semel.dead_letter
    where decided_ms is not null and decided_ms <= coalesce($2::bigint, semel.now_ms())
          and greatest(expires_ms, decided_ms + expires_ms - settled_ms) <= coalesce($2::bigint, semel.now_ms())
    order by decided_ms limit $1 for update skip locked
)
returning id, digest, aliases

-- name: purge_decisions
delete from semel.decision where dead_letter_id = any ($1::bigint[])

-- name: purge_inbox_keys
-- The keys of inbox items that were given up.
delete from semel.inbox_key t using unnest($1::bytea[], $2::bigint[]) as a (digest, id)
where t.digest = a.digest and t.id = a.id

-- name: purge_subjects
with examined as (
    select digest, holder is null and until_ms <= coalesce($3::bigint, semel.now_ms()) as expired
    from semel.subject where digest > $1 order by digest limit $2
), deleted as (
    delete from semel.subject t using examined o
    where t.digest = o.digest and o.expired and t.holder is null and t.until_ms <= coalesce($3::bigint, semel.now_ms())
)
select count(*), (select digest from examined order by digest desc limit 1) from examined

-- name: set_purge_position
update semel.meta set value = $1, digest = $2 where name = 'purge_position'
