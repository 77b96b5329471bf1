-- Queries for operators. Each returns the columns of an Entry and the attempt log. Listings: $1 limit, $2 handler ('': all),
-- $3 tenant (null: all), $4 since, $5 until (ms); newest first. A generation is one more than the number of earlier replays.
-- Reasons are compared in Python, whose case folding covers all languages.
--
-- Few keys are not settled, and no index can contain them: every settle would have to write it. They are found by their
-- tokens. All keys up to semel.meta 'settled_position' are settled, except those in semel.unsettled_key. 0 is the token of a
-- released lease.

-- name: accepted_entries
-- An item whose key is leased or waits for its next attempt is listed as that key.
select encode(i.digest, 'hex'), coalesce(nullif(i.only_handler, ''), i.lane), i.key_text, i.tenant, 'accepted',
       coalesce(i.reason, ''), i.expired_leases, i.accepted_ms, null::bytea, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.digest = i.digest and d.decision = 1), 0),
       null::bytea
from semel.inbox i
where ($2 = '' or i.lane = $2 or i.only_handler = $2) and ($3::text is null or i.tenant = $3)
      and i.accepted_ms >= $4 and i.accepted_ms < $5
      and coalesce((select y.state from semel.key y where y.digest = i.digest), 3) = 3
order by i.id desc limit $1

-- name: unsettled_entries
-- $6: 1 leased, 2 waiting.
select encode(y.digest, 'hex'), y.handler, y.key_text, y.tenant, case y.state when 1 then 'leased' else 'waiting' end,
       case when y.state = 2 then coalesce(y.result, '') else '' end, y.attempts, y.first_granted_ms, null::bytea, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.digest = y.digest and d.decision = 1), 0),
       y.attempt_log
from (
    select digest, token from semel.key
    where token > (select value from semel.meta where name = 'settled_position') and state <> 3
    union all select digest, token from semel.key where token = 0
    union all select digest, token from semel.unsettled_key
) o join semel.key y on y.digest = o.digest and y.token = o.token
where y.state = $6 and y.alias_of is null and ($2 = '' or y.handler = $2) and ($3::text is null or y.tenant = $3)
      and y.first_granted_ms >= $4 and y.first_granted_ms < $5
order by y.first_granted_ms desc, y.token desc limit $1

-- name: dead_letter_entries
-- $6: 2 dead, 3 uncertain.
select encode(l.digest, 'hex'), l.handler, l.key_text, l.tenant, case l.outcome when 2 then 'dead' else 'uncertain' end,
       l.reason, l.attempts, l.settled_ms, l.event, null::bytea,
       1 + coalesce((
           select max(d.generation) from semel.decision d where d.digest = l.digest and d.decision = 1 and d.token < l.id), 0),
       l.attempt_log
from semel.dead_letter l
where l.decided_ms is null and l.outcome = $6 and l.settled_ms >= $4 and l.settled_ms < $5
      and ($2 = '' or l.handler = $2) and ($3::text is null or l.tenant = $3)
order by l.settled_ms desc, l.id desc limit $1

-- name: done_entries
-- In the order of their grants, which is the only index; `catalog.py` sorts the newest of them by the time of their end.
select encode(y.digest, 'hex'), y.handler, y.key_text, y.tenant, 'done', '', y.attempts, y.until_ms - y.retention_ms,
       null::bytea, coalesce(y.result, 'null'),
       1 + coalesce((
           select max(d.generation) from semel.decision d where d.digest = y.digest and d.decision = 1 and d.token < y.token
       ), 0),
       y.attempt_log
from semel.key y
where y.state = 3 and y.outcome = 1 and y.alias_of is null
      and y.until_ms - y.retention_ms >= $4 and y.until_ms - y.retention_ms < $5
      and ($2 = '' or y.handler = $2) and ($3::text is null or y.tenant = $3)
order by y.token desc limit $1

-- name: key_entry
-- By its own digest or by an alias. A key that is dead or uncertain has a dead letter instead.
select encode(coalesce(y.alias_of, y.digest), 'hex'), y.handler, y.key_text, y.tenant,
       case y.state when 1 then 'leased' when 2 then 'waiting' else 'done' end,
       case when y.state = 2 then coalesce(y.result, '') else '' end, y.attempts,
       case when y.state = 3 then y.until_ms - y.retention_ms else y.first_granted_ms end, null::bytea,
       case when y.state = 3 then coalesce(y.result, 'null') end,
       1 + coalesce((
           select max(d.generation) from semel.decision d
           where d.digest = coalesce(y.alias_of, y.digest) and d.decision = 1 and (y.state <> 3 or d.token < y.token)
       ), 0), y.attempt_log
from semel.key y where y.digest = $1 and (y.state <> 3 or y.outcome = 1)

-- name: inbox_entries_of_key
select encode(i.digest, 'hex'), coalesce(nullif(i.only_handler, ''), i.lane), i.key_text, i.tenant, 'accepted',
       coalesce(i.reason, ''), i.expired_leases, i.accepted_ms, null::bytea, null::bytea,
       1 + coalesce((select max(d.generation) from semel.decision d where d.digest = i.digest and d.decision = 1), 0),
       null::bytea
from semel.inbox_key q join semel.inbox i on i.id = q.id where q.digest = $1 order by i.id desc

-- name: dead_letters_of_key
-- By its own digest or an alias: the current one, and the earlier ones with their decisions.
select encode(l.digest, 'hex'), l.handler, l.key_text, l.tenant,
       case when d.decision = 1 then 'replayed' when d.decision = 2 then 'discarded'
            when l.outcome = 2 then 'dead' else 'uncertain' end,
       l.reason, l.attempts, coalesce(d.decided_ms, l.settled_ms), l.event,
       case when l.outcome = 1 then coalesce(l.result, 'null') end,
       1 + coalesce((
           select max(g.generation) from semel.decision g where g.digest = l.digest and g.decision = 1 and g.token < l.id), 0),
       l.attempt_log,
       d.decision, d.decided_ms, d.decided_by, d.reason
from (
    select token as id from semel.key where digest = $1 and state = 3
    union select id from semel.inbox_key where digest = $1
    union select id from semel.dead_letter where digest = $1
) o join semel.dead_letter l on l.id = o.id left join semel.decision d on d.dead_letter_id = l.id
order by l.id desc

-- name: count_unsettled
-- Leased keys and waiting keys, without aliases; and inbox items that are counted here by their key.
with unsettled as materialized (
    select y.digest, y.state, y.alias_of from (
        select digest, token from semel.key
        where token > (select value from semel.meta where name = 'settled_position') and state <> 3
        union all select digest, token from semel.key where token = 0
        union all select digest, token from semel.unsettled_key
    ) o join semel.key y on y.digest = o.digest and y.token = o.token where y.state <> 3
)
select count(*) filter (where state = 1 and alias_of is null), count(*) filter (where state = 2 and alias_of is null),
       (select count(distinct i.id) from unsettled n join semel.inbox_key q on q.digest = n.digest
               join semel.inbox i on i.id = q.id and i.digest = n.digest)
from unsettled

-- name: count_dead_letters
select outcome, count(*) from semel.dead_letter where decided_ms is null group by outcome

-- name: count_inbox
select count(*) from semel.inbox

-- name: count_keys
-- All keys, the aliases, and the keys that did not end as done. Index-only scans, except for the dead letters, which are few.
select (select count(*) from semel.key), (select count(*) from semel.key where alias_of is not null),
       (select count(*) from semel.dead_letter l join semel.key y on y.digest = l.digest and y.token = l.id
        where y.state = 3 and y.outcome <> 1 and y.alias_of is null)

-- name: mark_unsettled_keys
select semel.mark_unsettled_keys($1, $2, $3)
