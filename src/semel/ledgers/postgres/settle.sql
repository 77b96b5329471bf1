-- Settlements and renewals. Rows are addressed by pairs of digest and token, each pair once in a batch.

-- name: settle
-- Done (no delay) and Retry (with a delay) of claims with one key and no subject: nearly all settlements. A HOT update.
with ended as (
    update semel.key t
    set state = case when a.delay_ms is null then 3 else 2 end, outcome = (a.delay_ms is null)::integer, result = a.result,
        until_ms = c.now_ms + coalesce(a.delay_ms, t.retention_ms),
        attempt_log = case when a.delay_ms is null then t.attempt_log
                           else coalesce(t.attempt_log, '') || int8send(c.now_ms) || int4send(t.attempts)
                                || int2send(length(a.result)::smallint) || a.result end
    from unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[])
         with ordinality as a (digest, token, result, delay_ms, ordinal),
         (select coalesce($5::bigint, semel.now_ms()) as now_ms offset 0) c
    where t.digest = a.digest and t.token = a.token and t.state = 1
    returning a.ordinal
)
select array_agg(ordinal) from ended

-- name: settle_any
-- Every outcome, of leases with any number of keys. A lease that lost one of its keys is lost. There is one row per key, with
-- the ordinal of its settlement and the number of keys of that; values of the settlement itself are in the row of its own
-- key. `ending`: 1 done, 2 dead, 3 uncertain, 4 retry, 5 release. `failure`: the reason of a failed attempt.
with settlement as (
    select * from unnest($1::integer[], $2::bytea[], $3::bigint[], $4::boolean[], $5::integer[], $6::smallint[],
                         $7::bytea[], $8::bigint[], $9::bytea[], $10::bytea[], $11::bigint[], $12::bigint[],
                         $13::bytea[], $14::text[], $15::bytea[], $16::bytea[])
         as a (ordinal, digest, token, own, keys, ending, result, delay_ms, failure, subject, position, longest_retention_ms,
               aliases, reason, event, decode_options)
), clock as (
    select coalesce($17::bigint, semel.now_ms()) as now_ms
), held as (
    select s.*, t.attempts, t.retention_ms from settlement s join semel.key t on t.digest = s.digest and t.token = s.token
    where t.state = 1
    order by t.digest for update of t
), whole as (
    select *, max(retention_ms) filter (where own) over (partition by ordinal) as own_retention_ms
    from held where ordinal in (select ordinal from held group by ordinal having count(*) = max(keys))
), ended as (
    update semel.key t
    set state = case when w.ending <= 3 then 3 when w.ending = 4 or not t.suspect then 2 else 1 end,
        token = case when w.ending = 5 then 0 else t.token end,
        outcome = case when w.ending <= 3 then w.ending else 0 end,
        result = case when w.ending = 5 then null else w.result end,
        attempts = t.attempts - (w.ending = 5)::integer,
        -- A retry that is never claimed again expires with all its keys at once. The next grant sets it again.
        retention_ms = case when w.ending <= 3 then t.retention_ms else w.own_retention_ms end,
        until_ms = case w.ending when 5 then 0 when 4 then c.now_ms + w.delay_ms else c.now_ms + t.retention_ms end,
        attempt_log = case when w.failure is null then t.attempt_log
                           else coalesce(t.attempt_log, '') || int8send(c.now_ms) || int4send(t.attempts)
                                || int2send(length(w.failure)::smallint) || w.failure end
    from whole w, clock c
    where t.digest = w.digest and t.token = w.token and t.state = 1 and not (w.ending = 5 and w.attempts = 1)
    returning w.own, w.ending, w.token as id, t.digest, w.aliases, w.reason, t.fingerprint, t.attempts, c.now_ms,
              w.longest_retention_ms, t.tenant, t.handler, t.key_text, w.event, w.decode_options, t.attempt_log
), released as (
    -- The release of a first attempt leaves no row.
    delete from semel.key t using whole w
    where t.digest = w.digest and t.token = w.token and t.state = 1 and w.ending = 5 and w.attempts = 1
), dead_letters as (
    insert into semel.dead_letter (id, digest, aliases, outcome, reason, fingerprint, attempts, settled_ms, expires_ms, tenant,
                                   handler, key_text, event, decode_options, attempt_log)
    select id, digest, aliases, ending, reason, fingerprint, attempts, now_ms, now_ms + longest_retention_ms, tenant,
           handler, key_text, event, decode_options, attempt_log
    from ended where own and ending in (2, 3)
), freed as (
    -- Only the newest grant of a subject can hold it, so the highest token of a batch decides whether it becomes free.
    insert into semel.subject as t (digest, newest, token, until_ms)
    select w.subject, max(w.position) filter (where w.ending = 1), max(w.token), max(c.now_ms + w.longest_retention_ms)
    from whole w, clock c where w.subject is not null
    group by w.subject order by w.subject
    on conflict (digest) do update
    set newest = greatest(t.newest, excluded.newest), until_ms = greatest(t.until_ms, excluded.until_ms),
        holder = case when t.token = excluded.token then null else t.holder end
)
select array_agg(ordinal) from whole where own

-- name: settled_before
-- Reads the state of pairs that were not found: an earlier settlement may have succeeded although its reply was lost.
select a.ordinal::integer, t.state, t.outcome, t.result
from unnest($1::bytea[], $2::bigint[]) with ordinality as a (digest, token, ordinal), semel.key t
where t.digest = a.digest and t.token = a.token

-- name: settled_after_commit
-- Like settled_before, for one pair whose commit was not answered: waits for a transaction that is still ending.
select state, outcome, result from semel.key where digest = $1 and token = $2 for update

-- name: renew
update semel.key t set until_ms = c.now_ms + a.lease_ms
from unnest($1::bytea[], $2::bigint[], $3::bigint[]) as a (digest, token, lease_ms),
     (select coalesce($4::bigint, semel.now_ms()) as now_ms offset 0) c
where t.digest = a.digest and t.token = a.token and t.state = 1

-- name: renew_free
-- Renews leases whose row is not locked. Returns false for those that are held and locked.
with requested as (
    select * from unnest($1::bytea[], $2::bigint[], $3::bigint[]) with ordinality as a (digest, token, lease_ms, ordinal)
), free as (
    select t.digest, a.token, a.lease_ms, a.ordinal from requested a, semel.key t
    where t.digest = a.digest and t.token = a.token and t.state = 1
    order by t.digest for no key update of t skip locked
), renewed as (
    update semel.key t set until_ms = c.now_ms + f.lease_ms
    from free f,
         (select coalesce($4::bigint, semel.now_ms()) as now_ms offset 0) c
    where t.digest = f.digest and t.token = f.token and t.state = 1
    returning f.ordinal
)
select ordinal::integer, true from renewed
union all
select a.ordinal::integer, false from requested a, semel.key t
where t.digest = a.digest and t.token = a.token and t.state = 1 and a.ordinal not in (select ordinal from renewed)
