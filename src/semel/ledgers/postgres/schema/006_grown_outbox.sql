-- What keeps the outbox quick and small when much was sent, and when much waits. Functions that are asked otherwise than
-- before, or answer otherwise, have a new number; those of schema/005_relaying.sql stay for relays that still run.

alter table semel.dispatch add column behind bigint;
comment on column semel.dispatch.behind is '`due`, while it is set aside behind another one of its order key';

-- The next two are not by the columns themselves: what asks for one index must not be planned through another, as long as
-- the table looks small. Of a provider with a limit each tenant has a share: who has used it up is passed over, with all that
-- it has waiting.
create index dispatch_share on semel.dispatch (lane, tenant, (priority + 0), due, place) where due is not null;
-- Of an order key at most one is begun, and thousands may wait behind it.
create index dispatch_begun on semel.dispatch ((ordered || ''::bytea)) where ordered is not null and token > 0;
-- By when they were added, which nothing changes: by when they ended, no update of a notification would be HOT any more.
create index notification_content on semel.notification (added) where content is not null;
create index guard_until on semel.guard (until);

-- ------------------------------------------------------------------------------------------------------------- in order

-- The lock of an order key. Under it one is begun, one is set aside, and one that has ended lets the next come forward.
create function semel.order_lock_1(ordered bytea) returns bigint language sql immutable parallel safe
as $$ select ('x' || encode(substring(ordered from 1 for 8), 'hex'))::bit(64)::bigint $$;

-- Whoever ends lets the next one of its order key come forward, whatever it was that ended it.
create function semel.come_forward_1() returns trigger
language plpgsql set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
    perform pg_advisory_xact_lock(semel.order_lock_1(old.ordered));
    update semel.dispatch d set due = d.behind, behind = null
    where d.behind is not null
          and d.id = (select o.id from semel.dispatch o where o.ordered = old.ordered order by o.place limit 1);
    return null;
end $$;
create trigger dispatch_over after delete on semel.dispatch
    for each row when (old.ordered is not null) execute function semel.come_forward_1();

-- Where `reach` rows and more are due, and were looked at in vain: those of them that stand behind others of their order
-- keys are not looked at again until those are over. It is done key by key, those with the most first, and for so many keys
-- only as locks are at hand; whose key is locked by another is left for the next time.
create function semel.set_aside_1(asked_lane text, tenants text[], asked_priority integer, moment bigint, reach integer)
returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    seen bytea[];
    orders bytea[];
    locked bytea[];
begin
    if tenants is null then
        select array_agg(s.id), array_agg(s.ordered) into seen, orders from (
            select x.id, x.ordered from semel.dispatch x
            where x.lane = asked_lane and x.priority = asked_priority and x.due <= moment
            order by x.due, x.place limit 2000
        ) s;
    else
        select array_agg(s.id), array_agg(s.ordered) into seen, orders from (
            select y.* from unnest(tenants) t(tenant) cross join lateral (
                select x.id, x.ordered from semel.dispatch x
                where x.lane = asked_lane and x.tenant = t.tenant and (x.priority + 0) = asked_priority and x.due <= moment
                order by x.due, x.place limit 2000
            ) y limit 2000
        ) s;
    end if;
    if seen is null or cardinality(seen) < reach then
        return false;
    end if;
    locked := array(
        select o.ordered from (
            select u.ordered from unnest(orders) u(ordered)
            where u.ordered is not null group by u.ordered order by count(*) desc limit 50
        ) o where pg_try_advisory_xact_lock(semel.order_lock_1(o.ordered)));
    seen := array(
        select d.id from unnest(seen, orders) u(id, ordered) cross join lateral (
            select x.id from semel.dispatch x where x.id = u.id and x.token = 0 limit 1 for update skip locked
        ) d where u.ordered = any (locked));
    update semel.dispatch d set behind = coalesce(d.behind, d.due), due = null
    where d.id = any (seen)
          and (exists (select from semel.dispatch o where o.ordered = d.ordered and o.place < d.place)
               or exists (select from semel.dispatch o
                          where o.ordered || ''::bytea = d.ordered and o.ordered is not null and o.token > 0
                                and o.token > d.token));
    return found;
end $$;

-- --------------------------------------------------------------------------------------------------------------- taking

-- What is due: in each lane by priority, and then the longest due first. What somebody else is at is passed over.
--
-- Of an order key the one that was begun goes on, and only when there is none the oldest begins. Whoever begins one holds
-- the key's lock, and looks once more when it has it: another one may have been begun, and an older one may have been
-- committed, since the rows were found. One look goes `reach` rows far, for thousands may stand behind one. (That a begun one
-- has a higher token than 0 is said twice: what can be compared by = alone would be planned by reading all of them.)
--
-- Where rows are joined by id they are named by an array of ids too: a queue that was empty when it was last analyzed would
-- else be planned to be read from end to end, and may be long by now.
--
-- Slots of a rate are given out one after the other, for each provider and tenant, up to `ahead` ms from now. What gets
-- none keeps its place.
create function semel.carry_2(
    lanes text[], rooms integer[], providers text[], rates double precision[], ahead bigint, lease bigint, asked_ms bigint
)
returns table (now bigint, id bytea, token bigint, slot bigint, vanished boolean, standing bytea, request bytea, tenant text,
               key text, kind text, recipient text, channel text, generation integer, content bytea, options text,
               added bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    moment bigint := coalesce(asked_ms, semel.now_ms());
    share_lanes integer[];   -- of providers with a limit: each tenant that has something due, and how much of it may go
    share_tenants text[];
    share_rooms integer[];
    queue record;
    lane_now integer := 0;
    vacant integer;
    reach integer;
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
        with recursive each as (   -- from one tenant to the next, whatever each has waiting
            select w.at::integer as at, w.lane, (
                select d.tenant from semel.dispatch d where d.lane = w.lane and d.due is not null order by d.tenant limit 1
            ) as tenant
            from unnest(lanes, rates) with ordinality w(lane, rate, at) where w.rate > 0
            union all
            select e.at, e.lane, (
                select d.tenant from semel.dispatch d
                where d.lane = e.lane and d.tenant > e.tenant and d.due is not null order by d.tenant limit 1)
            from each e where e.tenant is not null
        )
        select array_agg(e.at), array_agg(e.tenant) into share_lanes, share_tenants from each e
        where e.tenant is not null and exists (
            select from generate_series(0, 9) p(priority) cross join lateral (
                select from semel.dispatch d
                where d.lane = e.lane and d.tenant = e.tenant and (d.priority + 0) = p.priority and d.due <= moment
                order by d.due, d.place limit 1) d);

        insert into semel.rate (provider, tenant, next)
        select distinct providers[u.at], u.tenant, 0 from unnest(share_lanes, share_tenants) u(at, tenant) order by 1, 2
        on conflict do nothing;
        perform from (
            select distinct providers[u.at] as provider, u.tenant from unnest(share_lanes, share_tenants) u(at, tenant)
            order by 1, 2
        ) a cross join lateral (
            select from semel.rate x where x.provider = a.provider and x.tenant = a.tenant limit 1 for update) r;
        moment := coalesce(asked_ms, semel.now_ms());   -- whoever had the rate before us may have had it for long
        update semel.rate r set next = moment + ahead   -- none is given out so late: the clock went back
        from unnest(share_lanes, share_tenants) u(at, tenant)
        where r.provider = providers[u.at] and r.tenant = u.tenant and r.provider = any (providers)
              and r.next > moment + ahead + 1000 / rates[u.at] + 1;
        select array_agg(s.at), array_agg(s.tenant), array_agg(s.room) into share_lanes, share_tenants, share_rooms
        from (
            select u.at, u.tenant,
                   least(rooms[u.at], 1 + floor((moment + ahead - greatest(r.next, moment)) * rates[u.at] / 1000))::integer
                   as room
            from unnest(share_lanes, share_tenants) u(at, tenant) cross join lateral (
                select x.next from semel.rate x where x.provider = providers[u.at] and x.tenant = u.tenant limit 1) r
            where r.next <= moment + ahead
        ) s;
    end if;

    for queue in
        select w.at::integer as at, w.lane, p.priority, rates[w.at] > 0 as limited
        from unnest(lanes) with ordinality w(lane, at) cross join generate_series(0, 9) p(priority) cross join lateral (
            select from semel.dispatch d where d.lane = w.lane and d.priority = p.priority and d.due <= moment
            order by d.due, d.place limit 1) d
        order by 1, 3
    loop
        if queue.at <> lane_now then
            lane_now := queue.at;
            vacant := rooms[queue.at];
        end if;
        continue when vacant < 1;
        reach := 4 * vacant + 200;
        for look in 1 .. 4 loop
            if queue.limited then
                select array_agg(f.id order by f.due, f.place), array_agg(f.ordered order by f.due, f.place),
                       array_agg(f.tenant order by f.due, f.place)
                into ids, orders, tenants
                from (
                    select c.* from unnest(share_lanes, share_tenants, share_rooms) s(at, tenant, room) cross join lateral (
                        select i.id, i.due, i.place, i.ordered, i.tenant from semel.dispatch i
                        where i.lane = queue.lane and i.tenant = s.tenant and (i.priority + 0) = queue.priority
                              and i.due <= moment
                              and (i.due, i.place) <= (
                                  select h.due, h.place from (
                                      (select x.due, x.place from semel.dispatch x
                                       where x.lane = queue.lane and x.tenant = s.tenant and (x.priority + 0) = queue.priority
                                             and x.due <= moment
                                       order by x.due, x.place offset reach limit 1)
                                      union all values (moment, 9223372036854775807)
                                  ) h limit 1)
                              and (i.ordered is null or i.token > 0 or not (
                                  exists (select from semel.dispatch o where o.ordered = i.ordered and o.place < i.place)
                                  or exists (
                                      select from semel.dispatch o
                                      where o.ordered || ''::bytea = i.ordered and o.ordered is not null and o.token > 0
                                            and o.token > i.token)))
                        order by i.due, i.place limit least(s.room, vacant) for update skip locked
                    ) c where s.at = queue.at order by c.due, c.place limit vacant
                ) f;
            else
                select array_agg(f.id order by f.due, f.place), array_agg(f.ordered order by f.due, f.place),
                       array_agg(f.tenant order by f.due, f.place)
                into ids, orders, tenants
                from (
                    select i.id, i.due, i.place, i.ordered, i.tenant from semel.dispatch i
                    where i.lane = queue.lane and i.priority = queue.priority and i.due <= moment
                          and (i.due, i.place) <= (
                              select h.due, h.place from (
                                  (select x.due, x.place from semel.dispatch x
                                   where x.lane = queue.lane and x.priority = queue.priority and x.due <= moment
                                   order by x.due, x.place offset reach limit 1)
                                  union all values (moment, 9223372036854775807)
                              ) h limit 1)
                          and (i.ordered is null or i.token > 0 or not (
                              exists (select from semel.dispatch o where o.ordered = i.ordered and o.place < i.place)
                              or exists (
                                  select from semel.dispatch o
                                  where o.ordered || ''::bytea = i.ordered and o.ordered is not null and o.token > 0
                                        and o.token > i.token)))
                    order by i.due, i.place limit vacant for update skip locked
                ) f;
            end if;
            exit when cardinality(ids) >= vacant;
            exit when not semel.set_aside_1(
                queue.lane, case when queue.limited then array(
                    select s.tenant from unnest(share_lanes, share_tenants) s(at, tenant) where s.at = queue.at) end,
                queue.priority, moment, reach);
        end loop;
        continue when ids is null;
        vacant := vacant - cardinality(ids);
        found_ids := found_ids || ids;
        found_orders := found_orders || orders;
        found_tenants := found_tenants || tenants;
        found_lanes := found_lanes || array_fill(queue.at, array[cardinality(ids)]);
    end loop;
    if found_ids is null then
        return;
    end if;

    if exists (select from unnest(found_orders) u(ordered) where ordered is not null) then
        found_orders := array(   -- of those whose lock is ours now, or null
            select case when u.ordered is null or pg_try_advisory_xact_lock(semel.order_lock_1(u.ordered)) then u.ordered
                   else ''::bytea end
            from unnest(found_orders) with ordinality u(ordered, n) order by u.n);
        select array_agg(u.id order by u.n), array_agg(u.at order by u.n), array_agg(u.tenant order by u.n)
        into found_ids, found_lanes, found_tenants
        from unnest(found_ids, found_lanes, found_orders, found_tenants) with ordinality u(id, at, ordered, tenant, n)
             cross join lateral (select d.token, d.place from semel.dispatch d where d.id = u.id limit 1) i
        where u.ordered is null or (u.ordered <> '' and (i.token > 0 or not (
            exists (select from semel.dispatch o where o.ordered = u.ordered and o.place < i.place)
            or exists (
                select from semel.dispatch o
                where o.ordered || ''::bytea = u.ordered and o.ordered is not null and o.token > 0 and o.token > i.token))));
        if found_ids is null then
            return;
        end if;
    end if;

    if 0 < any (rates) then
        select array_agg(s.slot order by s.n) into found_slots from (
            select u.n, case when rates[u.at] > 0 then ceil(
                       greatest(r.next, moment) + (row_number() over (partition by providers[u.at], u.tenant order by u.n) - 1)
                       * 1000 / rates[u.at])::bigint else 0 end as slot
            from unnest(found_lanes, found_tenants) with ordinality u(at, tenant, n) left join lateral (
                select x.next from semel.rate x where x.provider = providers[u.at] and x.tenant = u.tenant limit 1) r on true
        ) s;
        update semel.rate r set next = greatest(r.next, moment) + t.given * 1000 / t.rate
        from (
            select providers[u.at] as provider, u.tenant, max(rates[u.at]) as rate, count(*) as given
            from unnest(found_lanes, found_tenants, found_slots) u(at, tenant, slot)
            where rates[u.at] > 0 and u.slot <= moment + ahead group by 1, 2
        ) t where r.provider = t.provider and r.tenant = t.tenant and r.provider = any (providers);
    end if;

    return query
    with numbered as materialized (
        select o.id, o.slot, i.taken, nextval('semel.token') as token
        from (
            select u.id, coalesce(u.slot, 0) as slot from unnest(found_ids, found_slots) with ordinality u(id, slot, n)
            where coalesce(u.slot, 0) <= moment + ahead order by u.n
        ) o cross join lateral (select d.taken from semel.dispatch d where d.id = o.id limit 1) i
    ), mine as (
        update semel.dispatch d set token = v.token, taken = true, due = moment + lease
        from numbered v where d.id = v.id and d.id = any (found_ids)
        returning d.id, v.token, v.slot, v.taken, d.standing, d.request
    )
    select moment, m.id, m.token, m.slot, m.taken, m.standing, m.request, n.tenant, n.key, n.kind, n.recipient, n.channel,
           n.generation, n.content, n.options::text, n.added
    from mine m cross join lateral (select * from semel.notification x where x.id = m.id limit 1) n;
end $$;
