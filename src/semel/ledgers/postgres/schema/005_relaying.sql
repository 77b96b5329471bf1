-- What relays ask of the outbox, each in one round trip for a batch. Every write after a take has the token in its WHERE.
--
-- Locks are taken in one order everywhere: dispatches by their ids, then notifications, then guards by theirs.

-- ------------------------------------------------------------------------------------------------------------- taking

-- What is due: in each lane by priority, and then the longest due first. What somebody else is at is passed over.
--
-- Of an order key the one that was begun goes on, and only when there is none the oldest begins. Whoever begins one holds
-- the key's advisory lock, and looks once more when it has it: another one may have been begun, and an older one may have
-- been committed, since the rows were found.
--
-- Slots of a rate are given out one after the other, for each provider and tenant, up to `ahead` ms from now. What gets
-- none is due again when there may be one.
create function semel.carry_1(
    lanes text[], rooms integer[], providers text[], rates double precision[], ahead bigint, lease bigint, asked_ms bigint
)
returns table (now bigint, id bytea, token bigint, slot bigint, vanished boolean, standing bytea, request bytea, tenant text,
               key text, kind text, recipient text, channel text, generation integer, content bytea, options text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    moment bigint := coalesce(asked_ms, semel.now_ms());
    found_ids bytea[];
    found_lanes integer[];
    found_orders bytea[];
    found_tenants text[];
    found_slots bigint[];
    has_rates boolean := 0 < any (rates);
begin
    -- Lane by lane, priority by priority: nested loops, which stop as soon as there is no room.
    select array_agg(f.id order by f.at, f.priority, f.due, f.place), array_agg(f.at order by f.at, f.priority, f.due, f.place),
           array_agg(f.ordered order by f.at, f.priority, f.due, f.place),
           array_agg(f.tenant order by f.at, f.priority, f.due, f.place)
    into found_ids, found_lanes, found_orders, found_tenants
    from (
        select w.at, c.* from unnest(lanes, rooms) with ordinality w(lane, room, at) cross join lateral (
            select d.* from generate_series(0, 9) p(priority) cross join lateral (
                select i.id, i.priority, i.due, i.place, i.ordered, i.tenant from semel.dispatch i
                where i.lane = w.lane and i.priority = p.priority and i.due <= moment
                      and (i.ordered is null or i.token > 0 or not exists (
                          select from semel.dispatch o
                          where o.ordered = i.ordered and (o.place < i.place or o.token > 0)))
                order by i.due, i.place limit w.room for update skip locked
            ) d limit w.room
        ) c
    ) f;
    if found_ids is null then
        return;
    end if;

    if exists (select from unnest(found_orders) u(ordered) where ordered is not null) then
        found_orders := array(   -- of those whose lock is ours now, or null
            select case when u.ordered is null or pg_try_advisory_xact_lock(
                       ('x' || encode(substring(u.ordered from 1 for 8), 'hex'))::bit(64)::bigint) then u.ordered
                   else ''::bytea end
            from unnest(found_orders) with ordinality u(ordered, n) order by u.n);
        select array_agg(u.id order by u.n), array_agg(u.at order by u.n), array_agg(u.tenant order by u.n)
        into found_ids, found_lanes, found_tenants
        from unnest(found_ids, found_lanes, found_orders, found_tenants) with ordinality u(id, at, ordered, tenant, n)
        where u.ordered is null or (u.ordered <> '' and not exists (
            select from semel.dispatch o, semel.dispatch i
            where i.id = u.id and o.ordered = u.ordered and o.id <> u.id and i.token = 0
                  and (o.token > 0 or o.place < i.place)));
        if found_ids is null then
            return;
        end if;
    end if;

    if has_rates then
        insert into semel.rate (provider, tenant, next)
        select distinct providers[u.at], u.tenant, 0 from unnest(found_lanes, found_tenants) u(at, tenant)
        where rates[u.at] > 0 order by 1, 2
        on conflict do nothing;
        perform from (
            select distinct providers[u.at] as provider, u.tenant from unnest(found_lanes, found_tenants) u(at, tenant)
            where rates[u.at] > 0
        ) a join semel.rate r on r.provider = a.provider and r.tenant = a.tenant
        order by r.provider, r.tenant for update of r;

        select array_agg(s.slot order by s.n) into found_slots from (
            select u.n, case when rates[u.at] > 0 then ceil(
                       greatest(r.next, moment) + (row_number() over (partition by providers[u.at], u.tenant order by u.n) - 1)
                       * 1000 / rates[u.at])::bigint else 0 end as slot
            from unnest(found_lanes, found_tenants) with ordinality u(at, tenant, n)
                 left join semel.rate r on r.provider = providers[u.at] and r.tenant = u.tenant
        ) s;
        update semel.rate r set next = greatest(r.next, moment) + t.given * 1000 / t.rate
        from (
            select providers[u.at] as provider, u.tenant, max(rates[u.at]) as rate, count(*) as given
            from unnest(found_lanes, found_tenants, found_slots) u(at, tenant, slot)
            where rates[u.at] > 0 and u.slot <= moment + ahead group by 1, 2
        ) t where r.provider = t.provider and r.tenant = t.tenant;
        update semel.dispatch i set due = u.slot from unnest(found_ids, found_slots) u(id, slot)
        where i.id = u.id and u.slot > moment + ahead;
    end if;

    return query
    with numbered as materialized (
        select o.id, o.slot, i.taken, nextval('semel.token') as token
        from (
            select u.id, coalesce(u.slot, 0) as slot from unnest(found_ids, found_slots) with ordinality u(id, slot, n)
            where coalesce(u.slot, 0) <= moment + ahead order by u.n
        ) o cross join lateral (select d.taken from semel.dispatch d where d.id = o.id limit 1) i
    ), mine as (
        update semel.dispatch d set token = v.token, taken = true, due = moment + lease from numbered v where d.id = v.id
        returning d.id, v.token, v.slot, v.taken, d.standing, d.request
    )
    select moment, m.id, m.token, m.slot, m.taken, m.standing, m.request, n.tenant, n.key, n.kind, n.recipient, n.channel,
           n.generation, n.content, n.options::text
    from mine m cross join lateral (select * from semel.notification x where x.id = m.id limit 1) n;
end $$;

-- ----------------------------------------------------------------------------------------------------------- crossing

-- Gates of dispatches, each with another id: 1 crossed, 2 held, 3 suppressed; there is no row for those whose token is not
-- the current one. A token crosses once: what was crossed and has not been recorded is nobody's to send.
--
-- Whoever asks for a guard has its row locked, and makes it if there is none; so all see what the one before has passed.
-- In a batch the first that its guard lets through is the one that those behind it wait for.
create function semel.cross_1(
    asked_ms bigint, ids bytea[], tokens bigint[], guards bytea[], windows bigint[], doubts boolean[], providers text[],
    numbers integer[], possibles integer[], standings bytea[], requests bytea[]
)
returns table (at integer, gate smallint, by bytea)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    held integer[];
    watched bytea[];
    locked bigint;
begin
    select array_agg(h.at order by h.at) into held from (
        select a.at from unnest(ids, tokens) with ordinality a(id, token, at) join semel.dispatch d on d.id = a.id
        where d.token = a.token and d.taken and d.state <> 'sending'
        order by d.id for update of d
    ) h;
    if held is null then
        return;
    end if;

    watched := array(select distinct guards[h.at] from unnest(held) h(at) where guards[h.at] is not null order by 1);
    while watched <> '{}' loop
        insert into semel.guard (k, id, at, until) select w.k, ''::bytea, 0, 0 from unnest(watched) w(k) order by w.k
        on conflict do nothing;
        select count(*) into locked
        from (select from semel.guard g where g.k = any (watched) order by g.k for update) l;
        exit when locked = cardinality(watched);   -- else somebody has just forgotten one
    end loop;

    return query
    with asked as (
        select h.at, g.k, g.id as holder, coalesce(n.state, 'accepted') as state,
               g.k is null or g.id in ('', ids[h.at]) or now - g.at >= windows[h.at] as free
        from unnest(held) h(at)
             left join lateral (select * from semel.guard x where x.k = guards[h.at] limit 1) g on true
             left join lateral (select x.state from semel.notification x where x.id = g.id limit 1) n on true
    ), first as (
        select a.*, min(a.at) filter (where a.free) over (partition by a.k) as first from asked a
    ), judged as materialized (
        select f.at, f.k,
               (case when f.k is null or f.at = f.first then 1
                     when f.at > f.first or doubts[f.at] or f.state in ('pending', 'sending') then 2
                     else 3 end)::smallint as gate,   -- what may have left already is not called suppressed
               case when f.at > f.first then ids[f.first] else f.holder end as by
        from first f
    ), passed as (
        update semel.guard g set id = ids[j.at], at = now, until = greatest(g.until, now + windows[j.at])
        from judged j where j.gate = 1 and g.k = j.k
    ), crossed as (
        update semel.dispatch d
        set state = 'sending', lane = providers[j.at], standing = standings[j.at], crossed = now, number = numbers[j.at],
            request = coalesce(d.request, requests[j.at])
        from judged j where j.gate = 1 and d.id = ids[j.at] and d.token = tokens[j.at]
    ), noted as (
        update semel.notification n
        set state = case j.gate when 1 then 'sending' else 'suppressed' end, changed = now,
            ended = case j.gate when 3 then 'suppressed' end,
            reason = case j.gate when 3 then 'its guard has let ' || encode(j.by, 'hex') || ' through' else '' end,
            by_id = case j.gate when 3 then j.by end,
            provider = case j.gate when 1 then providers[j.at] else n.provider end,
            possible = case j.gate when 1 then possibles[j.at] else n.possible end
        from judged j where j.gate in (1, 3) and n.id = ids[j.at]
    ), over as (
        delete from semel.dispatch d using judged j where j.gate = 3 and d.id = ids[j.at] and d.token = tokens[j.at]
    )
    select j.at, j.gate, j.by from judged j;
end $$;

-- ---------------------------------------------------------------------------------------------------------- recording

-- What came of dispatches, by pairs of id and token, each pair once. Returns which of them are written, now or before.
-- `frees`: its guard lets the next one through.
create function semel.record_1(
    asked_ms bigint, ids bytea[], tokens bigint[], outcomes text[], states text[], reasons text[], providers text[],
    refs text[], possibles integer[], numbers integer[], tried text[], crossings bigint[], evidences text[], lives boolean[],
    dues bigint[], lanes text[], standings bytea[], keeps boolean[], frees boolean[]
)
returns setof integer
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    held integer[];
begin
    select array_agg(h.at) into held from (
        select a.at from unnest(ids, tokens) with ordinality a(id, token, at) join semel.dispatch d on d.id = a.id
        where d.token = a.token and d.taken
        order by d.id for update of d
    ) h;
    if held is not null then
        with mine as materialized (
            select h.at, ids[h.at] as id, tokens[h.at] as token from unnest(held) h(at)
        ), noted as (
            update semel.notification n
            set state = states[m.at], reason = reasons[m.at], provider = providers[m.at], possible = possibles[m.at],
                reference = coalesce(refs[m.at], n.reference), changed = now,
                ended = case when states[m.at] in ('failed', 'undelivered', 'suppressed', 'expired', 'cancelled')
                             then states[m.at] end
            from mine m where n.id = m.id
        ), told as (
            -- What is given back before anything left is no attempt, unless it ends so; a crossing that is taken back is one.
            insert into semel.attempt (id, token, outcome, number, provider, crossed, ended, evidence, reference)
            select m.id, m.token, outcomes[m.at], numbers[m.at], tried[m.at], crossings[m.at], now, evidences[m.at], refs[m.at]
            from mine m join semel.dispatch d on d.id = m.id
            where outcomes[m.at] <> 'released' or not lives[m.at] or d.state = 'sending'
            on conflict do nothing
        ), over as (
            delete from semel.dispatch d using mine m where not lives[m.at] and d.id = m.id and d.token = m.token
        )
        update semel.dispatch d
        set taken = false, due = dues[m.at], state = states[m.at], lane = lanes[m.at], standing = standings[m.at],
            request = case when keeps[m.at] then d.request end
        from mine m where lives[m.at] and d.id = m.id and d.token = m.token;

        if true = any (frees) then
            delete from semel.guard g using (
                select x.k from unnest(held) h(at) join semel.notification n on n.id = ids[h.at]
                     join semel.guard x on x.k = n.guarded and x.id = n.id
                where frees[h.at] order by x.k for update of x
            ) f where g.k = f.k;
        end if;
    end if;
    return query
    select a.at::integer
    from unnest(ids, tokens) with ordinality a(id, token, at)
         left join lateral (select d.token, d.taken from semel.dispatch d where d.id = a.id limit 1) d on d.token = a.token
         left join lateral (
             select t.outcome from semel.attempt t where t.id = a.id and t.token = a.token and t.word = '' limit 1
         ) t on true
    where not d.taken or t.outcome <> '';
end $$;

-- The word of providers, in order. `from_states`, `from_says` and `to_states` are what it moves. A state is null for a
-- message that nobody knows.
create function semel.witness_1(
    asked_ms bigint, ids bytea[], says text[], providers text[], refs text[], ats bigint[], evidences text[],
    from_states text[], from_says text[], to_states text[]
)
returns table (at integer, state text)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    known bytea[];
    was record;
    becomes text;
begin
    known := array(
        select coalesce(a.id, (
            select t.id from semel.attempt t where t.reference = a.reference and t.provider = a.provider limit 1))
        from unnest(ids, refs, providers) with ordinality a(id, reference, provider, at) order by a.at);
    perform from semel.dispatch d where d.id = any (known) order by d.id for update;
    perform from semel.notification n where n.id = any (known) order by n.id for no key update;
    for place in 1 .. cardinality(known) loop
        select n.id, n.state, n.provider, n.guarded into was from semel.notification n where n.id = known[place];
        at := place;
        state := was.state;
        if was.id is not null then
            insert into semel.attempt (id, token, word, outcome, provider, ended, evidence, reference)
            values (was.id, 0, says[place], says[place], coalesce(nullif(providers[place], ''), was.provider),
                    coalesce(nullif(ats[place], 0), now), evidences[place], refs[place])
            on conflict do nothing;
            select m.becomes into becomes from unnest(from_states, from_says, to_states) m(was, word, becomes)
            where m.was = was.state and m.word = says[place];
            if becomes is not null then
                state := becomes;
                update semel.notification n
                set state = becomes, ended = case when becomes in ('failed', 'undelivered') then becomes end,
                    reason = evidences[place], provider = coalesce(nullif(providers[place], ''), n.provider),
                    reference = coalesce(refs[place], n.reference), changed = now
                where n.id = was.id;
                with gone as (
                    delete from semel.dispatch d where d.id = was.id returning d.*
                )
                insert into semel.attempt (id, token, number, provider, crossed)   -- nobody will say what came of it
                select g.id, g.token, g.number, g.lane, g.crossed from gone g where g.state = 'sending'
                on conflict do nothing;
                if becomes = 'failed' then   -- it was refused: the next one of its guard may go
                    delete from semel.guard g where g.k = was.guarded and g.id = was.id;
                end if;
            end if;
        end if;
        return next;
    end loop;
end $$;
