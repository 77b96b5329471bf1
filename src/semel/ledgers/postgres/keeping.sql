-- Forgetting, in bounded steps: by DELETE and not by dropping partitions, because a key must be unique over all of them.
-- Rows are swept in the order of their tokens, which is nearly the order of time and of the table's pages.

-- name: where_swept
select value, place from semel.meta where name = 'swept' for update

-- name: sweep
-- Looks at $2 rows and forgets at most $3 of them: what is settled and over, and retries that nobody brought again for
-- their whole retention. A lapsed lease is in doubt, and stays. Letters have rows of their own.
with clock as (
    select coalesce($4::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as now
), looked as (
    select t.k, t.token,
           (t.state = 3 and t.until <= c.now) or (t.state = 2 and t.until + t.keep <= c.now) as over
    from semel.key t, clock c where t.token > $1 order by t.token limit $2
), chosen as (
    select k, token from looked where over order by token limit $3
), free as (
    -- Who claims one of them at this moment has it: nobody waits for a purge, and it waits for nobody.
    select t.k, t.token from chosen o join semel.key t on t.k = o.k and t.token = o.token, clock c
    where (t.state = 3 and t.until <= c.now) or (t.state = 2 and t.until + t.keep <= c.now)
    for update of t skip locked
), gone as (
    delete from semel.key t using free f where t.k = f.k and t.token = f.token returning t.token
)
select (select count(*) from looked), (select max(token) from looked),
       (select count(*) from gone), (select max(token) from chosen), (select count(*) from chosen)

-- name: forget_letters
-- What was decided is kept for its retention once more, as history. What is undecided waits for a person.
delete from semel.letter where id in (
    select id from semel.letter
    where decided is not null and decided <= coalesce($1::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
          and greatest(expires, decided + expires - at)
              <= coalesce($1::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
    order by decided limit $2 for update skip locked
)
returning id, k, aliases

-- name: forget_decisions
delete from semel.decision where rec = any ($1::bigint[])

-- name: forget_letter_keys
-- The keys by which the inbox knows what it gave up.
delete from semel.inbox_key t using unnest($1::bytea[], $2::bigint[]) as a (k, id) where t.k = a.k and t.id = a.id

-- name: sweep_subjects
with looked as (
    select k, holder is null
              and until <= coalesce($3::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) as over
    from semel.subject where k > $1 order by k limit $2
), gone as (
    delete from semel.subject t using looked o
    where t.k = o.k and o.over and t.holder is null
          and t.until <= coalesce($3::bigint, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
)
select count(*), (select k from looked order by k desc limit 1) from looked

-- name: set_swept
update semel.meta set value = $1, place = $2 where name = 'swept'
