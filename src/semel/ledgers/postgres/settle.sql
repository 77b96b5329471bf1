-- Ends of leases. A pair of key and token is what is ended, never two lists of them: a token with another's key is
-- nobody's. Of each pair there is one in a batch.

-- name: settle
-- Done, and Retry where there is a delay, of claims with one key and no subject: nearly all there are. A HOT update.
with ended as (
    update semel.key t
    set state = case when a.delay is null then 3 else 2 end, outcome = (a.delay is null)::integer, result = a.result,
        until = c.now + coalesce(a.delay, t.keep),
        tried = case when a.delay is null then t.tried
                     else coalesce(t.tried, '') || int8send(c.now) || int4send(t.attempts)
                          || int2send(length(a.result)::smallint) || a.result end
    from unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[]) with ordinality as a (k, token, result, delay, i),
         (select coalesce($5::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as now offset 0) c
    where t.k = a.k and t.token = a.token and t.state = 1
    returning a.i
)
select array_agg(i) from ended

-- name: settle_any
-- Every ending, of leases with any number of keys: whoever lost one of them has lost the lease. There is a row for each
-- key, with the place of its settlement (i) and how many keys that has; what only a settlement has stands with its own
-- key. `ending`: 1 done, 2 dead, 3 uncertain, 4 retry, 5 release. `why`: of an attempt that failed.
with said as (
    select * from unnest($1::integer[], $2::bytea[], $3::bigint[], $4::boolean[], $5::integer[], $6::smallint[],
                         $7::bytea[], $8::bigint[], $9::bytea[], $10::bytea[], $11::bigint[], $12::bigint[],
                         $13::bytea[], $14::text[], $15::bytea[], $16::bytea[])
         as a (i, k, token, own, keys, ending, result, delay, why, subject, place, kept, aliases, reason, event, reading)
), clock as (
    select coalesce($17::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as now
), held as (
    select s.*, t.attempts, t.keep from said s join semel.key t on t.k = s.k and t.token = s.token
    where t.state = 1
    order by t.k for update of t
), whole as (
    select *, max(keep) filter (where own) over (partition by i) as own_keep
    from held where i in (select i from held group by i having count(*) = max(keys))
), ended as (
    update semel.key t
    set state = case when w.ending <= 3 then 3 when w.ending = 4 or not t.suspect then 2 else 1 end,
        token = case when w.ending = 5 then 0 else t.token end,
        outcome = case when w.ending <= 3 then w.ending else 0 end,
        result = case when w.ending = 5 then null else w.result end,
        attempts = t.attempts - (w.ending = 5)::integer,
        -- A retry that is never claimed again expires with all its keys at once. The next grant sets it again.
        keep = case when w.ending <= 3 then t.keep else w.own_keep end,
        until = case w.ending when 5 then 0 when 4 then c.now + w.delay else c.now + t.keep end,
        tried = case when w.why is null then t.tried
                     else coalesce(t.tried, '') || int8send(c.now) || int4send(t.attempts)
                          || int2send(length(w.why)::smallint) || w.why end
    from whole w, clock c
    where t.k = w.k and t.token = w.token and t.state = 1 and not (w.ending = 5 and w.attempts = 1)
    returning w.own, w.ending, w.token as id, t.k, w.aliases, w.reason, t.fp, t.attempts, c.now, w.kept,
              t.tenant, t.handler, t.text, w.event, w.reading, t.tried
), released as (
    -- A first attempt leaves nothing behind.
    delete from semel.key t using whole w
    where t.k = w.k and t.token = w.token and t.state = 1 and w.ending = 5 and w.attempts = 1
), letters as (
    insert into semel.letter (id, k, aliases, outcome, reason, fp, attempts, at, expires, tenant, handler, text,
                              event, reading, tried)
    select id, k, aliases, ending, reason, fp, attempts, now, now + kept, tenant, handler, text, event, reading, tried
    from ended where own and ending in (2, 3)
), freed as (
    -- Of a subject's grants only the newest can hold it, so the highest token of a batch says whether it is free.
    insert into semel.subject as t (k, newest, token, until)
    select w.subject, max(w.place) filter (where w.ending = 1), max(w.token), max(c.now + w.kept)
    from whole w, clock c where w.subject is not null
    group by w.subject order by w.subject
    on conflict (k) do update
    set newest = greatest(t.newest, excluded.newest), until = greatest(t.until, excluded.until),
        holder = case when t.token = excluded.token then null else t.holder end
)
select array_agg(i) from whole where own

-- name: settled_before
-- A lost reply was followed by a retry: what the pairs that were not found stand for now.
select a.i::integer, t.state, t.outcome, t.result
from unnest($1::bytea[], $2::bigint[]) with ordinality as a (k, token, i), semel.key t
where t.k = a.k and t.token = a.token

-- name: settled_at_last
-- As settled_before, of one pair whose commit was not answered: waits for a transaction that is still ending.
select state, outcome, result from semel.key where k = $1 and token = $2 for update

-- name: renew
update semel.key t set until = c.now + a.lease
from unnest($1::bytea[], $2::bigint[], $3::bigint[]) as a (k, token, lease),
     (select coalesce($4::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as now offset 0) c
where t.k = a.k and t.token = a.token and t.state = 1

-- name: renew_free
-- Those whose row is free; of those that are held and locked it says so.
with asked as (
    select * from unnest($1::bytea[], $2::bigint[], $3::bigint[]) with ordinality as a (k, token, lease, i)
), free as (
    select t.k, a.token, a.lease, a.i from asked a, semel.key t
    where t.k = a.k and t.token = a.token and t.state = 1
    order by t.k for no key update of t skip locked
), renewed as (
    update semel.key t set until = c.now + f.lease
    from free f,
         (select coalesce($4::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as now offset 0) c
    where t.k = f.k and t.token = f.token and t.state = 1
    returning f.i
)
select i::integer, true from renewed
union all
select a.i::integer, false from asked a, semel.key t
where t.k = a.k and t.token = a.token and t.state = 1 and a.i not in (select i from renewed)
