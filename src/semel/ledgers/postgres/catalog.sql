-- What people may see, by name: each query brings the columns of an Entry, and for its decision what came of
-- its attempts. $1 limit, $2 handler ('':
-- all), $3 tenant (null: all), $4 since, $5 until (ms); newest first. A generation is one more than the replays that came
-- before it. Reasons are compared in Python, which knows all letters of all languages.
--
-- Keys that are not settled are few, and no index can hold them: it would have to be written at every settle. They are
-- found by their tokens: all up to semel.meta 'settled' were seen settled, but for those in semel.lingering. 0 is the token
-- of a lease that was given back.

-- name: accepted_entries
-- Whatever has a lease, or waits for its next attempt, is listed as that.
select encode(i.k, 'hex'), coalesce(nullif(i.only_handler, ''), i.lane), i.text, i.tenant, 'accepted', coalesce(i.reason, ''),
       i.lapses, i.accepted, null::bytea, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.k = i.k and d.what = 1), 0), null::bytea
from semel.inbox i
where ($2 = '' or i.lane = $2 or i.only_handler = $2) and ($3::text is null or i.tenant = $3)
      and i.accepted >= $4 and i.accepted < $5
      and coalesce((select y.state from semel.key y where y.k = i.k), 3) = 3
order by i.id desc limit $1

-- name: open_entries
-- $6: 1 leased, 2 waiting.
select encode(y.k, 'hex'), y.handler, y.text, y.tenant, case y.state when 1 then 'leased' else 'waiting' end,
       case when y.state = 2 then coalesce(y.result, '') else '' end, y.attempts, y.first, null::bytea, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.k = y.k and d.what = 1), 0), y.tried
from (
    select k, token from semel.key where token > (select value from semel.meta where name = 'settled') and state <> 3
    union all select k, token from semel.key where token = 0
    union all select k, token from semel.lingering
) o join semel.key y on y.k = o.k and y.token = o.token
where y.state = $6 and y.owner is null and ($2 = '' or y.handler = $2) and ($3::text is null or y.tenant = $3)
      and y.first >= $4 and y.first < $5
order by y.first desc, y.token desc limit $1

-- name: letter_entries
-- $6: 2 dead, 3 uncertain.
select encode(l.k, 'hex'), l.handler, l.text, l.tenant, case l.outcome when 2 then 'dead' else 'uncertain' end, l.reason,
       l.attempts, l.at, l.event, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.k = l.k and d.what = 1 and d.token < l.id), 0), l.tried
from semel.letter l
where l.decided is null and l.outcome = $6 and l.at >= $4 and l.at < $5
      and ($2 = '' or l.handler = $2) and ($3::text is null or l.tenant = $3)
order by l.at desc, l.id desc limit $1

-- name: done_entries
-- In the order of their grants, as the only index has them; `catalog.py` sorts the newest of them by the time of their end.
select encode(y.k, 'hex'), y.handler, y.text, y.tenant, 'done', '', y.attempts, y.until - y.keep, null::bytea,
       coalesce(y.result, 'null'),
       1 + coalesce((select max(d.generation) from semel.decision d where d.k = y.k and d.what = 1 and d.token < y.token), 0), y.tried
from semel.key y
where y.state = 3 and y.outcome = 1 and y.owner is null and y.until - y.keep >= $4 and y.until - y.keep < $5
      and ($2 = '' or y.handler = $2) and ($3::text is null or y.tenant = $3)
order by y.token desc limit $1

-- name: key_now
-- By its own name or as an alias. What ended otherwise than done is told by its letter.
select encode(coalesce(y.owner, y.k), 'hex'), y.handler, y.text, y.tenant,
       case y.state when 1 then 'leased' when 2 then 'waiting' else 'done' end,
       case when y.state = 2 then coalesce(y.result, '') else '' end, y.attempts,
       case when y.state = 3 then y.until - y.keep else y.first end, null::bytea,
       case when y.state = 3 then coalesce(y.result, 'null') end,
       1 + coalesce((
           select max(d.generation) from semel.decision d
           where d.k = coalesce(y.owner, y.k) and d.what = 1 and (y.state <> 3 or d.token < y.token)
       ), 0), y.tried
from semel.key y where y.k = $1 and (y.state <> 3 or y.outcome = 1)

-- name: letters_waiting_of
select encode(i.k, 'hex'), coalesce(nullif(i.only_handler, ''), i.lane), i.text, i.tenant, 'accepted', coalesce(i.reason, ''),
       i.lapses, i.accepted, null::bytea, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.k = i.k and d.what = 1), 0), null::bytea
from semel.inbox_key q join semel.inbox i on i.id = q.id where q.k = $1 order by i.id desc

-- name: letters_of
-- By its own key or an alias, as it answers now; and as it ended before.
select encode(l.k, 'hex'), l.handler, l.text, l.tenant,
       case when d.what = 1 then 'replayed' when d.what = 2 then 'discarded' when l.outcome = 2 then 'dead' else 'uncertain' end,
       l.reason, l.attempts, coalesce(d.at, l.at), l.event, case when l.outcome = 1 then coalesce(l.result, 'null') end,
       1 + coalesce((select max(g.generation) from semel.decision g where g.k = l.k and g.what = 1 and g.token < l.id), 0),
       l.tried,
       d.what, d.by, d.at, d.reason
from (
    select token as id from semel.key where k = $1 and state = 3
    union select id from semel.inbox_key where k = $1
    union select id from semel.letter where k = $1
) o join semel.letter l on l.id = o.id left join semel.decision d on d.rec = l.id
order by l.id desc

-- name: count_open
-- By state: keys of their own, with their aliases, and letters of the inbox that are counted here and not there.
with open as materialized (
    select y.k, y.state, y.owner from (
        select k, token from semel.key where token > (select value from semel.meta where name = 'settled') and state <> 3
        union all select k, token from semel.key where token = 0
        union all select k, token from semel.lingering
    ) o join semel.key y on y.k = o.k and y.token = o.token where y.state <> 3
)
select count(*) filter (where state = 1 and owner is null), count(*) filter (where state = 2 and owner is null),
       (select count(distinct i.id) from open n join semel.inbox_key q on q.k = n.k
               join semel.inbox i on i.id = q.id and i.k = n.k)
from open

-- name: count_letters
select outcome, count(*) from semel.letter where decided is null group by outcome

-- name: count_inbox
select count(*) from semel.inbox

-- name: count_keys
-- All, and those that are none or did not end as done. Both by an index alone, but for the letters, which are few.
select (select count(*) from semel.key), (select count(*) from semel.key where owner is not null),
       (select count(*) from semel.letter l join semel.key y on y.k = l.k and y.token = l.id
        where y.state = 3 and y.outcome <> 1 and y.owner is null)

-- name: linger
select semel.linger_1($1, $2, $3)
