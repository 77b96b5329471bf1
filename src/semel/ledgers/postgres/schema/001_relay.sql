-- The operations of relays on the outbox, each one round trip for a batch. Every write after a take has the token in its
-- WHERE. Locks are taken in one order: dispatches by id, then guards by digest, then notifications by id, then order keys.
--
-- Statements that join rows by id also name them by an array of ids. A table that was empty when it was last analyzed would
-- otherwise be read from end to end, and may be long by now.

-- --------------------------------------------------------------------------------------------------------- order keys

-- The advisory lock of an order key. A transaction holds it to begin a dispatch, to block one, or to release the next one.
create function semel.order_lock(order_digest bytea) returns bigint language sql immutable parallel safe
as $$ select ('x' || encode(substring(order_digest from 1 for 8), 'hex'))::bit(64)::bigint $$;

-- When a dispatch ends, for whatever reason, the next one of its order key is due again.
create function semel.release_next_in_order() returns trigger
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(semel.order_lock(old.order_digest));
    update semel.dispatch d set due_ms = d.blocked_due_ms, blocked_due_ms = null
    where d.blocked_due_ms is not null
          and d.id = (select o.id from semel.dispatch o where o.order_digest = old.order_digest order by o.sequence limit 1);
    return null;
end $$;
create trigger dispatch_ended after delete on semel.dispatch
    for each row when (old.order_digest is not null) execute function semel.release_next_in_order();

-- Blocks due dispatches that stand behind others of their order keys, if at least `rows_min` rows are due: a take does not
-- read them again until those are over. It works on one order key after the other, those with the most rows first, and on
-- a bounded number of keys, because locks are limited. A key that another transaction has locked waits for the next call.
create function semel.block_behind_older(
    in_lane text, of_tenants text[], of_priority integer, due_until_ms bigint, rows_min integer
)
returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    due_ids bytea[];
    orders bytea[];
    locked bytea[];
begin
    if of_tenants is null then
        select array_agg(s.id), array_agg(s.order_digest) into due_ids, orders from (
            select x.id, x.order_digest from semel.dispatch x
            where x.lane = in_lane and x.priority = of_priority and x.due_ms <= due_until_ms
            order by x.due_ms, x.sequence limit 2000
        ) s;
    else
        select array_agg(s.id), array_agg(s.order_digest) into due_ids, orders from (
            select y.* from unnest(of_tenants) t(tenant) cross join lateral (
                select x.id, x.order_digest from semel.dispatch x
                where x.lane = in_lane and x.tenant = t.tenant and (x.priority + 0) = of_priority
                      and x.due_ms <= due_until_ms
                order by x.due_ms, x.sequence limit 2000
            ) y limit 2000
        ) s;
    end if;
    if due_ids is null or cardinality(due_ids) < rows_min then
        return false;
    end if;
    locked := array(
        select o.order_digest from (
            select u.order_digest from unnest(orders) u(order_digest)
            where u.order_digest is not null group by u.order_digest order by count(*) desc limit 50
        ) o where pg_try_advisory_xact_lock(semel.order_lock(o.order_digest)));
    due_ids := array(
        select d.id from unnest(due_ids, orders) u(id, order_digest) cross join lateral (
            select x.id from semel.dispatch x where x.id = u.id and x.token = 0 limit 1 for update skip locked
        ) d where u.order_digest = any (locked));
    update semel.dispatch d set blocked_due_ms = coalesce(d.blocked_due_ms, d.due_ms), due_ms = null
    where d.id = any (due_ids)
          and (exists (select from semel.dispatch o where o.order_digest = d.order_digest and o.sequence < d.sequence)
               or exists (select from semel.dispatch o
                          where o.order_digest || ''::bytea = d.order_digest and o.order_digest is not null and o.token > 0
                                and o.token > d.token));
    return found;
end $$;

-- --------------------------------------------------------------------------------------------------------------- take

-- Takes due dispatches: in each lane by priority, and then the longest due first. Locked rows are skipped.
--
-- Of an order key only one dispatch is in progress: one that was begun continues, and if there is none, the oldest begins.
-- A transaction that begins one holds the order key's lock and checks again under it: since the rows were read, another one
-- may have been begun, and an older one may have been committed. One pass reads at most `rows_max` rows, because thousands may
-- be blocked behind one. (The condition that a begun dispatch has a token above 0 occurs twice: with an equality alone the
-- planner would read all of them.)
--
-- Slots of a rate are assigned one after the other, for each provider and tenant, up to `ahead_ms` from now. A dispatch
-- without a slot keeps its place.
create function semel.take_notifications(
    lanes text[], limits integer[], providers text[], rates double precision[], ahead_ms bigint, lease_ms bigint,
    clock_ms bigint
)
returns table (taken_ms bigint, id bytea, token bigint, slot_ms bigint, vanished boolean, delivery_state bytea, request bytea,
               tenant text, key text, kind text, recipient text, channel text, generation integer, content bytea, options text,
               added_ms bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    share_lanes integer[];   -- each tenant with due dispatches in a lane with a rate, and how many it may send now
    share_tenants text[];
    share_limits integer[];
    queue record;
    current_lane integer := 0;
    remaining integer;
    rows_max integer;
    ids bytea[];
    orders bytea[];
    tenants text[];
    found_ids bytea[];
    found_lanes integer[];
    found_orders bytea[];
    found_tenants text[];
    found_slots bigint[];
begin
    if 0 < any (rates) then
        with recursive each as (   -- one index look-up per tenant, however many dispatches each has
            select w.ordinal::integer as ordinal, w.lane, (
                select d.tenant from semel.dispatch d where d.lane = w.lane and d.due_ms is not null order by d.tenant limit 1
            ) as tenant
            from unnest(lanes, rates) with ordinality w(lane, rate, ordinal) where w.rate > 0
            union all
            select e.ordinal, e.lane, (
                select d.tenant from semel.dispatch d
                where d.lane = e.lane and d.tenant > e.tenant and d.due_ms is not null order by d.tenant limit 1)
            from each e where e.tenant is not null
        )
        select array_agg(e.ordinal), array_agg(e.tenant) into share_lanes, share_tenants from each e
        where e.tenant is not null and exists (
            select from generate_series(0, 9) p(priority) cross join lateral (
                select from semel.dispatch d
                where d.lane = e.lane and d.tenant = e.tenant and (d.priority + 0) = p.priority and d.due_ms <= now_ms
                order by d.due_ms, d.sequence limit 1) d);

        insert into semel.rate (provider, tenant, next_ms)
        select distinct providers[u.ordinal], u.tenant, 0 from unnest(share_lanes, share_tenants) u(ordinal, tenant)
        order by 1, 2
        on conflict do nothing;
        perform from (
            select distinct providers[u.ordinal] as provider, u.tenant
            from unnest(share_lanes, share_tenants) u(ordinal, tenant) order by 1, 2
        ) a cross join lateral (
            select from semel.rate x where x.provider = a.provider and x.tenant = a.tenant limit 1 for update) r;
        now_ms := coalesce(clock_ms, semel.now_ms());   -- the lock may have taken long
        update semel.rate r set next_ms = now_ms + ahead_ms   -- no slot is assigned so late: the clock went back
        from unnest(share_lanes, share_tenants) u(ordinal, tenant)
        where r.provider = providers[u.ordinal] and r.tenant = u.tenant and r.provider = any (providers)
              and r.next_ms > now_ms + ahead_ms + 1000 / rates[u.ordinal] + 1;
        select array_agg(s.ordinal), array_agg(s.tenant), array_agg(s.most) into share_lanes, share_tenants, share_limits
        from (
            select u.ordinal, u.tenant, least(
                       limits[u.ordinal],
                       1 + floor((now_ms + ahead_ms - greatest(r.next_ms, now_ms)) * rates[u.ordinal] / 1000))::integer as most
            from unnest(share_lanes, share_tenants) u(ordinal, tenant) cross join lateral (
                select x.next_ms from semel.rate x where x.provider = providers[u.ordinal] and x.tenant = u.tenant limit 1) r
            where r.next_ms <= now_ms + ahead_ms
        ) s;
    end if;

    for queue in
        select w.ordinal::integer as ordinal, w.lane, p.priority, rates[w.ordinal] > 0 as has_rate
        from unnest(lanes) with ordinality w(lane, ordinal) cross join generate_series(0, 9) p(priority) cross join lateral (
            select from semel.dispatch d where d.lane = w.lane and d.priority = p.priority and d.due_ms <= now_ms
            order by d.due_ms, d.sequence limit 1) d
        order by 1, 3
    loop
        if queue.ordinal <> current_lane then
            current_lane := queue.ordinal;
            remaining := limits[queue.ordinal];
        end if;
        continue when remaining < 1;
        rows_max := 4 * remaining + 200;
        for pass in 1 .. 4 loop
            if queue.has_rate then
                select array_agg(f.id order by f.due_ms, f.sequence), array_agg(f.order_digest order by f.due_ms, f.sequence),
                       array_agg(f.tenant order by f.due_ms, f.sequence)
                into ids, orders, tenants
                from (
                    select c.* from unnest(share_lanes, share_tenants, share_limits) s(ordinal, tenant, most)
                    cross join lateral (
                        select i.id, i.due_ms, i.sequence, i.order_digest, i.tenant from semel.dispatch i
                        where i.lane = queue.lane and i.tenant = s.tenant and (i.priority + 0) = queue.priority
                              and i.due_ms <= now_ms
                              and (i.due_ms, i.sequence) <= (
                                  select h.due_ms, h.sequence from (
                                      (select x.due_ms, x.sequence from semel.dispatch x
                                       where x.lane = queue.lane and x.tenant = s.tenant and (x.priority + 0) = queue.priority
                                             and x.due_ms <= now_ms
                                       order by x.due_ms, x.sequence offset rows_max limit 1)
                                      union all values (now_ms, 9223372036854775807)
                                  ) h limit 1)
                              and (i.order_digest is null or i.token > 0 or not (
                                  exists (select from semel.dispatch o
                                          where o.order_digest = i.order_digest and o.sequence < i.sequence)
                                  or exists (
                                      select from semel.dispatch o
                                      where o.order_digest || ''::bytea = i.order_digest and o.order_digest is not null
                                            and o.token > 0 and o.token > i.token)))
                        order by i.due_ms, i.sequence limit least(s.most, remaining) for update skip locked
                    ) c where s.ordinal = queue.ordinal order by c.due_ms, c.sequence limit remaining
                ) f;
            else
                select array_agg(f.id order by f.due_ms, f.sequence), array_agg(f.order_digest order by f.due_ms, f.sequence),
                       array_agg(f.tenant order by f.due_ms, f.sequence)
                into ids, orders, tenants
                from (
                    select i.id, i.due_ms, i.sequence, i.order_digest, i.tenant from semel.dispatch i
                    where i.lane = queue.lane and i.priority = queue.priority and i.due_ms <= now_ms
                          and (i.due_ms, i.sequence) <= (
                              select h.due_ms, h.sequence from (
                                  (select x.due_ms, x.sequence from semel.dispatch x
                                   where x.lane = queue.lane and x.priority = queue.priority and x.due_ms <= now_ms
                                   order by x.due_ms, x.sequence offset rows_max limit 1)
                                  union all values (now_ms, 9223372036854775807)
                              ) h limit 1)
                          and (i.order_digest is null or i.token > 0 or not (
                              exists (select from semel.dispatch o
                                      where o.order_digest = i.order_digest and o.sequence < i.sequence)
                              or exists (
                                  select from semel.dispatch o
                                  where o.order_digest || ''::bytea = i.order_digest and o.order_digest is not null
                                        and o.token > 0 and o.token > i.token)))
                    order by i.due_ms, i.sequence limit remaining for update skip locked
                ) f;
            end if;
            exit when cardinality(ids) >= remaining;
            exit when not semel.block_behind_older(
                queue.lane, case when queue.has_rate then array(
                    select s.tenant from unnest(share_lanes, share_tenants) s(ordinal, tenant)
                    where s.ordinal = queue.ordinal) end,
                queue.priority, now_ms, rows_max);
        end loop;
        continue when ids is null;
        remaining := remaining - cardinality(ids);
        found_ids := found_ids || ids;
        found_orders := found_orders || orders;
        found_tenants := found_tenants || tenants;
        found_lanes := found_lanes || array_fill(queue.ordinal, array[cardinality(ids)]);
    end loop;
    if found_ids is null then
        return;
    end if;

    if exists (select from unnest(found_orders) u(order_digest) where order_digest is not null) then
        found_orders := array(   -- an empty digest marks an order key whose lock another transaction has
            select case when u.order_digest is null or pg_try_advisory_xact_lock(semel.order_lock(u.order_digest))
                        then u.order_digest else ''::bytea end
            from unnest(found_orders) with ordinality u(order_digest, n) order by u.n);
        select array_agg(u.id order by u.n), array_agg(u.lane order by u.n), array_agg(u.tenant order by u.n)
        into found_ids, found_lanes, found_tenants
        from unnest(found_ids, found_lanes, found_orders, found_tenants)
             with ordinality u(id, lane, order_digest, tenant, n)
             cross join lateral (select d.token, d.sequence from semel.dispatch d where d.id = u.id limit 1) i
        where u.order_digest is null or (u.order_digest <> '' and (i.token > 0 or not (
            exists (select from semel.dispatch o where o.order_digest = u.order_digest and o.sequence < i.sequence)
            or exists (
                select from semel.dispatch o
                where o.order_digest || ''::bytea = u.order_digest and o.order_digest is not null
                      and o.token > 0 and o.token > i.token))));
        if found_ids is null then
            return;
        end if;
    end if;

    if 0 < any (rates) then
        select array_agg(s.slot_ms order by s.n) into found_slots from (
            select u.n, case when rates[u.lane] > 0 then ceil(
                       greatest(r.next_ms, now_ms)
                       + (row_number() over (partition by providers[u.lane], u.tenant order by u.n) - 1)
                       * 1000 / rates[u.lane])::bigint else 0 end as slot_ms
            from unnest(found_lanes, found_tenants) with ordinality u(lane, tenant, n) left join lateral (
                select x.next_ms from semel.rate x where x.provider = providers[u.lane] and x.tenant = u.tenant limit 1
            ) r on true
        ) s;
        update semel.rate r set next_ms = greatest(r.next_ms, now_ms) + t.slots * 1000 / t.rate
        from (
            select providers[u.lane] as provider, u.tenant, max(rates[u.lane]) as rate, count(*) as slots
            from unnest(found_lanes, found_tenants, found_slots) u(lane, tenant, slot_ms)
            where rates[u.lane] > 0 and u.slot_ms <= now_ms + ahead_ms group by 1, 2
        ) t where r.provider = t.provider and r.tenant = t.tenant and r.provider = any (providers);
    end if;

    return query
    with numbered as materialized (
        select o.id, o.slot_ms, i.taken, nextval('semel.token') as token
        from (
            select u.id, coalesce(u.slot_ms, 0) as slot_ms
            from unnest(found_ids, found_slots) with ordinality u(id, slot_ms, n)
            where coalesce(u.slot_ms, 0) <= now_ms + ahead_ms order by u.n
        ) o cross join lateral (select d.taken from semel.dispatch d where d.id = o.id limit 1) i
    ), taken as (
        update semel.dispatch d set token = v.token, taken = true, due_ms = now_ms + lease_ms
        from numbered v where d.id = v.id and d.id = any (found_ids)
        returning d.id, v.token, v.slot_ms, v.taken, d.delivery_state, d.request
    )
    select now_ms, m.id, m.token, m.slot_ms, m.taken, m.delivery_state, m.request, n.tenant, n.key, n.kind, n.recipient,
           n.channel, n.generation, n.content, n.options::text, n.added_ms
    from taken m cross join lateral (select * from semel.notification x where x.id = m.id limit 1) n;
end $$;

-- -------------------------------------------------------------------------------------------------------------- cross

-- Decides crossings, each of another dispatch: 1 crossed, 2 held, 3 suppressed. A dispatch whose token is not current has
-- no row in the result. A token crosses once: a dispatch that has crossed and is not recorded must not be sent.
--
-- The transaction locks the row of every guard, and creates it if there is none, so that it sees which notification passed
-- stored. In a batch, the first notification that a guard lets through is the one that the others are held by. A guard that
-- was passed before the notification was added was passed by an earlier one with the same identity.
create function semel.cross(
    clock_ms bigint, ids bytea[], tokens bigint[], added_times bigint[], guards bytea[], windows bigint[], doubts boolean[],
    providers text[], numbers integer[], duplicates integer[], delivery_states bytea[], requests bytea[]
)
returns table (ordinal integer, verdict smallint, blocked_by bytea)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    valid integer[];
    needed bytea[];
    locked bigint;
begin
    select array_agg(h.ordinal order by h.ordinal) into valid from (
        select a.ordinal from unnest(ids, tokens) with ordinality a(id, token, ordinal) join semel.dispatch d on d.id = a.id
        where d.id = any (ids) and d.token = a.token and d.taken and d.state <> 'sending'
        order by d.id for update of d
    ) h;
    if valid is null then
        return;
    end if;

    needed := array(
        select distinct guards[h.ordinal] from unnest(valid) h(ordinal) where guards[h.ordinal] is not null order by 1);
    while needed <> '{}' loop
        insert into semel.guard (digest, id, passed_ms, until_ms)
        select w.digest, ''::bytea, 0, 0 from unnest(needed) w(digest) order by w.digest
        on conflict do nothing;
        select count(*) into locked
        from (select from semel.guard g where g.digest = any (needed) order by g.digest for update) l;
        exit when locked = cardinality(needed);   -- otherwise a purge has just deleted one
    end loop;

    return query
    with requested as (
        select h.ordinal, g.digest, g.id as holder,
               case when n.added_ms <= g.passed_ms then n.state else 'accepted' end as state,
               g.digest is null or g.id = '' or (g.id = ids[h.ordinal] and g.passed_ms >= added_times[h.ordinal])
               or now_ms - g.passed_ms >= windows[h.ordinal] as free
        from unnest(valid) h(ordinal)
             left join lateral (select * from semel.guard x where x.digest = guards[h.ordinal] limit 1) g on true
             left join lateral (select x.state, x.added_ms from semel.notification x where x.id = g.id limit 1) n on true
    ), first as (
        select a.*, min(a.ordinal) filter (where a.free) over (partition by a.digest) as first from requested a
    ), judged as materialized (
        select f.ordinal, f.digest, f.state,
               (case when f.digest is null or f.ordinal = f.first then 1
                     when f.ordinal > f.first or doubts[f.ordinal] or f.state in ('pending', 'sending') then 2
                     else 3 end)::smallint as verdict,   -- one that may have been sent is never suppressed
               case when f.ordinal > f.first then ids[f.first] else f.holder end as blocked_by
        from first f
    ), passed as (
        -- Never earlier than it was added, also if the clock went back. One that passes again keeps the earlier ones.
        update semel.guard g
        set id = ids[j.ordinal], passed_ms = greatest(now_ms, added_times[j.ordinal]),
            until_ms = greatest(g.until_ms, now_ms + windows[j.ordinal]),
            earlier_ids = case when g.id = '' then '{}'
                when g.id = ids[j.ordinal] and g.passed_ms >= added_times[j.ordinal] then g.earlier_ids
                when j.state in ('pending', 'sending', 'uncertain') then (g.id || g.earlier_ids)[1:16]
                else array[g.id] end,   -- it may have been sent: older ones no longer matter
            earlier_ms = case when g.id = '' then '{}'
                when g.id = ids[j.ordinal] and g.passed_ms >= added_times[j.ordinal] then g.earlier_ms
                when j.state in ('pending', 'sending', 'uncertain') then (g.passed_ms || g.earlier_ms)[1:16]
                else array[g.passed_ms] end
        from judged j where j.verdict = 1 and g.digest = j.digest and g.digest = any (needed)
    ), crossed as (
        update semel.dispatch d
        set state = 'sending', lane = providers[j.ordinal], delivery_state = delivery_states[j.ordinal], crossed_ms = now_ms,
            number = numbers[j.ordinal], request = coalesce(d.request, requests[j.ordinal])
        from judged j where j.verdict = 1 and d.id = ids[j.ordinal] and d.token = tokens[j.ordinal] and d.id = any (ids)
    ), noted as (
        update semel.notification n
        set state = case j.verdict when 1 then 'sending' else 'suppressed' end, changed_ms = now_ms,
            ended_as = case j.verdict when 3 then 'suppressed' end,
            reason = case j.verdict when 3 then 'its guard has let ' || encode(j.blocked_by, 'hex') || ' through' else '' end,
            suppressed_by = case j.verdict when 3 then j.blocked_by end,
            provider = case j.verdict when 1 then providers[j.ordinal] else n.provider end,
            possible_duplicates = case j.verdict when 1 then duplicates[j.ordinal] else n.possible_duplicates end
        from judged j where j.verdict in (1, 3) and n.id = ids[j.ordinal] and n.id = any (ids)
    ), ended as (
        delete from semel.dispatch d using judged j
        where j.verdict = 3 and d.id = ids[j.ordinal] and d.token = tokens[j.ordinal] and d.id = any (ids)
    )
    select j.ordinal, j.verdict, j.blocked_by from judged j;
end $$;

-- Frees the guards of notifications that were definitely not sent. Each guard falls back to the newest earlier notification
-- that may have been sent, because a window may reach back to it. If there is none, the row stays, empty: a transaction that
-- locks several guards in order would otherwise have to insert one again behind others, and could deadlock.
create function semel.free_guards(unsent bytea[]) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    freed bytea[];
begin
    freed := array(
        select g.digest from (
            select n.guard_digest from semel.notification n
            where n.id = any (unsent) and n.guard_digest is not null order by n.guard_digest
        ) n cross join lateral (select y.digest from semel.guard y where y.digest = n.guard_digest limit 1 for update) g);
    if freed = '{}' then
        return;
    end if;
    update semel.guard g set (earlier_ids, earlier_ms) = (
        select coalesce(array_agg(p.id order by p.n), '{}'), coalesce(array_agg(p.passed_ms order by p.n), '{}')
        from unnest(g.id || g.earlier_ids, g.passed_ms || g.earlier_ms) with ordinality p(id, passed_ms, n)
        where not exists (   -- one that passed before it was added is an earlier one with the same identity
            select from semel.notification n
            where n.id = p.id and n.added_ms <= p.passed_ms and (n.id = any (unsent) or n.state = 'suppressed')))
    where g.digest = any (freed);
    update semel.guard g
    set id = coalesce(g.earlier_ids[1], ''), passed_ms = coalesce(g.earlier_ms[1], 0),
        earlier_ids = g.earlier_ids[2:], earlier_ms = g.earlier_ms[2:]
    where g.digest = any (freed);
end $$;

-- ------------------------------------------------------------------------------------------------------------- record

-- Records the results of dispatches, by pairs of id and token, each pair once. Returns the pairs that are recorded, now or
-- stored.
--
-- A record with a reference found by a look-up may have an alternative, in a row after the others: `alternatives` has its
-- ordinal. The alternative is written if that reference belongs to another notification. An advisory lock serializes
-- concurrent look-ups of one reference, and in a batch a sent message has precedence over a found one.
create function semel.record_results(
    clock_ms bigint, ids bytea[], tokens bigint[], alternatives integer[], outcomes text[], states text[], reasons text[],
    providers text[], provider_references text[], duplicates integer[], numbers integer[], attempt_providers text[],
    crossed_times bigint[], evidences text[], live boolean[], due_times bigint[], lanes text[], delivery_states bytea[],
    keep_requests boolean[], frees_guard boolean[]
)
returns setof integer
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    valid integer[];   -- pairs whose token is current
    written integer[];   -- the row to write for each of them
    owners bytea[];      -- the other notification that its reference belongs to, if any
begin
    select array_agg(h.ordinal order by h.ordinal) into valid from (
        select a.ordinal from unnest(ids, tokens) with ordinality a(id, token, ordinal) join semel.dispatch d on d.id = a.id
        where d.id = any (ids) and d.token = a.token and d.taken
        order by d.id for update of d
    ) h;
    written := valid;
    if exists (select from unnest(valid) h(ordinal) where alternatives[h.ordinal] is not null) then
        perform pg_advisory_xact_lock(l.lock) from (
            select distinct hashtextextended(attempt_providers[h.ordinal] || ' ' || provider_references[h.ordinal], 6) as lock
            from unnest(valid) h(ordinal) where alternatives[h.ordinal] is not null order by 1
        ) l;
        select array_agg(w.owner order by w.ordinal),
               array_agg(case when w.owner is null then w.ordinal else alternatives[w.ordinal] end order by w.ordinal)
        into owners, written
        from (
            select h.ordinal, case when alternatives[h.ordinal] is not null then coalesce(
                (select t.id from semel.attempt t
                 where t.reference = provider_references[h.ordinal] and t.provider = attempt_providers[h.ordinal]
                       and t.id <> ids[h.ordinal] limit 1),
                (select ids[o.ordinal] from unnest(valid) o(ordinal)
                 where provider_references[o.ordinal] = provider_references[h.ordinal]
                       and attempt_providers[o.ordinal] = attempt_providers[h.ordinal] and ids[o.ordinal] <> ids[h.ordinal]
                       and (alternatives[o.ordinal] is null or o.ordinal < h.ordinal) limit 1)) end as owner
            from unnest(valid) h(ordinal)
        ) w;
    end if;
    if valid is not null then
        if true = any (frees_guard) then   -- before the end of a dispatch locks its order key, as in semel.cross
            perform semel.free_guards(array(
                select ids[u.ordinal] from unnest(valid, written) u(ordinal, row) where frees_guard[u.row]));
        end if;
        with results as materialized (
            select u.row as ordinal, ids[u.ordinal] as id, tokens[u.ordinal] as token, u.owner
            from unnest(valid, written, owners) u(ordinal, row, owner)
        ), noted as (
            update semel.notification n
            set state = states[m.ordinal], reason = reasons[m.ordinal], provider = providers[m.ordinal],
                possible_duplicates = duplicates[m.ordinal],
                reference = coalesce(provider_references[m.ordinal], n.reference), changed_ms = now_ms,
                ended_as = case when states[m.ordinal] in ('failed', 'undelivered', 'suppressed', 'expired', 'cancelled')
                                then states[m.ordinal] end
            from results m where n.id = m.id and n.id = any (ids)
        ), attempts as (
            -- A release before the crossing is no attempt, unless the notification ends with it. A release after it is one.
            insert into semel.attempt (id, token, outcome, number, provider, crossed_ms, ended_ms, evidence, reference)
            select m.id, m.token, outcomes[m.ordinal], numbers[m.ordinal], attempt_providers[m.ordinal],
                   crossed_times[m.ordinal], now_ms, evidences[m.ordinal] || coalesce(encode(m.owner, 'hex'), ''),
                   provider_references[m.ordinal]
            from results m join semel.dispatch d on d.id = m.id and d.id = any (ids)
            where outcomes[m.ordinal] <> 'released' or not live[m.ordinal] or d.state = 'sending'
            on conflict do nothing
        ), ended as (
            delete from semel.dispatch d using results m
            where not live[m.ordinal] and d.id = m.id and d.token = m.token and d.id = any (ids)
        )
        update semel.dispatch d
        set taken = false, due_ms = due_times[m.ordinal], state = states[m.ordinal], lane = lanes[m.ordinal],
            delivery_state = delivery_states[m.ordinal], request = case when keep_requests[m.ordinal] then d.request end
        from results m where live[m.ordinal] and d.id = m.id and d.token = m.token and d.id = any (ids);
    end if;
    return query
    select a.ordinal::integer
    from unnest(ids, tokens) with ordinality a(id, token, ordinal)
         left join lateral (select d.token, d.taken from semel.dispatch d where d.id = a.id limit 1) d on d.token = a.token
         left join lateral (
             select t.outcome from semel.attempt t where t.id = a.id and t.token = a.token and t.report = '' limit 1
         ) t on true
    where not d.taken or t.outcome <> '';
end $$;

-- Applies delivery reports, in order. `from_states`, `from_reports` and `to_states` list the state changes that reports
-- cause. The resulting state is null for an unknown message.
--
-- A reference that two notifications share identifies neither. The evidence about an erased notification is not stored. A
-- refusal fails only a notification that is at that provider now and was sent there once. A report with another reference,
-- or from another provider, than the known one is about a second message: both may have arrived.
create function semel.apply_delivery_reports(
    clock_ms bigint, ids bytea[], reports text[], providers text[], provider_references text[], reported_times bigint[],
    evidences text[], from_states text[], from_reports text[], to_states text[]
)
returns table (ordinal integer, state text)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    known bytea[];
    stored record;
    reporter text;
    new_state text;
    unsent bytea[] := '{}';
begin
    known := array(
        select coalesce(a.id, (
            select (array_agg(o.id))[1] from (
                select distinct t.id from semel.attempt t where t.reference = a.reference and t.provider = a.provider limit 2
            ) o having count(*) = 1))
        from unnest(ids, provider_references, providers) with ordinality a(id, reference, provider, ordinal)
        order by a.ordinal);
    perform from semel.dispatch d where d.id = any (known) order by d.id for update;
    if 'refused' = any (reports) then   -- before the end of a dispatch locks its order key, as in semel.cross
        perform from (
            select n.guard_digest from semel.notification n
            where n.id = any (known) and n.guard_digest is not null order by n.guard_digest
        ) n cross join lateral (select from semel.guard g where g.digest = n.guard_digest limit 1 for update) g;
    end if;
    perform from semel.notification n where n.id = any (known) order by n.id for no key update;
    for item in 1 .. cardinality(known) loop
        select n.id, n.state, n.provider, n.possible_duplicates, n.content is null as erased into stored
        from semel.notification n where n.id = known[item];
        ordinal := item;
        state := stored.state;
        if stored.id is not null then
            reporter := coalesce(nullif(providers[item], ''), stored.provider);
            if stored.possible_duplicates = 0 and ((
                stored.state in ('accepted', 'delivered', 'undelivered') and reporter <> stored.provider
                and reports[item] in ('accepted', 'delivered', 'undelivered')
            ) or (provider_references[item] is not null and exists (
                select from semel.attempt t
                where t.id = stored.id and t.reference is not null
                      and (t.provider, t.reference) <> (reporter, provider_references[item])
            ))) then
                update semel.notification n set possible_duplicates = 1 where n.id = stored.id;
            end if;
            insert into semel.attempt (id, token, report, outcome, provider, ended_ms, evidence, reference)
            values (stored.id, 0, reports[item], reports[item], reporter, coalesce(nullif(reported_times[item], 0), now_ms),
                    case when stored.erased then '' else evidences[item] end, provider_references[item])
            on conflict do nothing;
            select m.to_state into new_state from unnest(from_states, from_reports, to_states) m(from_state, report, to_state)
            where m.from_state = stored.state and m.report = reports[item]
                  and (m.to_state <> 'failed' or (
                      stored.possible_duplicates = 0 and reporter = stored.provider and not exists (
                          select from semel.attempt t   -- it was uncertain and sent again: that is another message
                          where t.id = stored.id and t.outcome in ('absent', 'not_sent') and t.provider = reporter)));
            if new_state is not null then
                state := new_state;
                update semel.notification n
                set state = new_state, ended_as = case when new_state in ('failed', 'undelivered') then new_state end,
                    reason = case when stored.erased then '' else evidences[item] end,
                    provider = reporter, reference = coalesce(provider_references[item], n.reference), changed_ms = now_ms
                where n.id = stored.id;
                with ended as (
                    delete from semel.dispatch d where d.id = stored.id returning d.*
                )
                insert into semel.attempt (id, token, number, provider, crossed_ms)   -- its outcome stays unknown
                select g.id, g.token, g.number, g.lane, g.crossed_ms from ended g where g.state = 'sending'
                on conflict do nothing;
                if new_state = 'failed' then
                    unsent := unsent || stored.id;
                end if;
            end if;
        end if;
        return next;
    end loop;
    if unsent <> '{}' then
        perform semel.free_guards(unsent);   -- all at once: guards are locked in one order
    end if;
end $$;

-- -------------------------------------------------------------------------------------------------------------- purge

-- Erases the content of notifications that have been over for `content_ms`, and deletes those that have been over for
-- `identity_ms`; at most `rows_max` rows. Locked rows wait for the next purge. A guard is kept for `identity_ms` after its
-- window, because another notification may have a longer window. A notification that is added after its deletion is a new
-- one, although it has the same identity.
create function semel.purge_notifications(clock_ms bigint, content_ms bigint, identity_ms bigint, rows_max integer)
returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    erased_until_ms bigint := now_ms - least(content_ms, identity_ms);
    deleted_until_ms bigint := now_ms - identity_ms;
    erased bytea[];
    deleted bytea[];
    guards integer;
begin
    erased := array(
        select n.id from semel.notification n
        where n.content is not null and n.added_ms <= erased_until_ms and n.changed_ms <= erased_until_ms
              and n.state not in ('pending', 'sending', 'uncertain')
        order by n.added_ms limit rows_max for update skip locked);
    update semel.notification n set recipient = '', content = null, options = '{}', reason = ''
    where n.id = any (erased);
    update semel.attempt t set evidence = '' where t.id = any (erased) and t.evidence <> '';

    deleted := array(
        select n.id from semel.notification n
        where n.added_ms <= deleted_until_ms and n.changed_ms <= deleted_until_ms and n.content is null
        order by n.added_ms limit rows_max - cardinality(erased) for update skip locked);
    delete from semel.attempt t where t.id = any (deleted);
    delete from semel.notification n where n.id = any (deleted);

    with expired as materialized (
        select x.digest from semel.guard x where x.until_ms <= deleted_until_ms order by x.until_ms
        limit rows_max - cardinality(erased) - cardinality(deleted) for update skip locked
    ), purged as (
        delete from semel.guard g using expired e where g.digest = e.digest returning g.digest
    )
    select count(*) into guards from purged;
    return cardinality(erased) + cardinality(deleted) + guards;
end $$;
