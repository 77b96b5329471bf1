-- An outbox that forgets: what is over loses first what it said, and then what it was known by. What has the same identity
-- after that is another notification: a guard that was passed before it was added is not its own.
--
-- Where rows are joined by id they are named by an array of ids too: see semel.carry_2.

-- What is over since `content_ms` says nothing any more, and since `identity_ms` nobody knows it; at most so many. What is
-- locked is left for the next time. A guard is kept as long after its window as an identity is: somebody else's window may be
-- a longer one.
create function semel.purge_1(asked_ms bigint, content_ms bigint, identity_ms bigint, most integer)
returns integer
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    saying_until bigint := now - least(content_ms, identity_ms);
    known_until bigint := now - identity_ms;
    erased bytea[];
    forgotten bytea[];
    guards integer;
begin
    erased := array(
        select n.id from semel.notification n
        where n.content is not null and n.added <= saying_until and n.changed <= saying_until
              and n.state not in ('pending', 'sending', 'uncertain')
        order by n.added limit most for update skip locked);
    update semel.notification n set recipient = '', content = null, options = '{}', reason = ''
    where n.id = any (erased);
    update semel.attempt t set evidence = '' where t.id = any (erased) and t.evidence <> '';

    forgotten := array(
        select n.id from semel.notification n
        where n.added <= known_until and n.changed <= known_until and n.content is null
        order by n.added limit most - cardinality(erased) for update skip locked);
    delete from semel.attempt t where t.id = any (forgotten);
    delete from semel.notification n where n.id = any (forgotten);

    with over as materialized (
        select x.k from semel.guard x where x.until <= known_until order by x.until
        limit most - cardinality(erased) - cardinality(forgotten) for update skip locked
    ), gone as (
        delete from semel.guard g using over o where g.k = o.k returning g.k
    )
    select count(*) into guards from gone;
    return cardinality(erased) + cardinality(forgotten) + guards;
end $$;

-- --------------------------------------------------------------------------------------------------------------- guards

alter table semel.guard add column before_ats bigint[] not null default '{}',
                        add column before_ids bytea[] not null default '{}';
comment on column semel.guard.id is 'the newest that passed; empty: nobody has, or nobody who was sent';
comment on column semel.guard.before_ids is
    'who passed before, the newest first, back to one of whom it is known what came of it: to whom it is left where `id` is '
    'definitely not sent';
comment on column semel.guard.before_ats is 'when those did (ms)';

-- These were definitely not sent: what they have passed is left to the newest before them who may have been, if there is one.
-- Somebody's window may reach back to it. Where there is none, the row stays, empty: whoever locks several of them, in order,
-- would else have to make one again when it has others behind it already, and two would wait in a circle.
create function semel.free_guards_1(unsent bytea[]) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    freed bytea[];
begin
    freed := array(
        select g.k from (
            select n.guarded from semel.notification n where n.id = any (unsent) and n.guarded is not null order by n.guarded
        ) n cross join lateral (select y.k from semel.guard y where y.k = n.guarded limit 1 for update) g);
    if freed = '{}' then
        return;
    end if;
    update semel.guard g set (before_ids, before_ats) = (
        select coalesce(array_agg(p.id order by p.n), '{}'), coalesce(array_agg(p.at order by p.n), '{}')
        from unnest(g.id || g.before_ids, g.at || g.before_ats) with ordinality p(id, at, n)
        where not exists (   -- who passed before it was added had only the name in common with it
            select from semel.notification n
            where n.id = p.id and n.added <= p.at and (n.id = any (unsent) or n.state = 'suppressed')))
    where g.k = any (freed);
    update semel.guard g
    set id = coalesce(g.before_ids[1], ''), at = coalesce(g.before_ats[1], 0),
        before_ids = g.before_ids[2:], before_ats = g.before_ats[2:]
    where g.k = any (freed);
end $$;

-- ------------------------------------------------------------------------------------------------------------- crossing

-- As cross_1, but that a guard is its own only where it was passed after the notification was added.
create function semel.cross_2(
    asked_ms bigint, ids bytea[], tokens bigint[], addeds bigint[], guards bytea[], windows bigint[], doubts boolean[],
    providers text[], numbers integer[], possibles integer[], standings bytea[], requests bytea[]
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
        where d.id = any (ids) and d.token = a.token and d.taken and d.state <> 'sending'
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
        select h.at, g.k, g.id as holder, case when n.added <= g.at then n.state else 'accepted' end as state,
               g.k is null or g.id = '' or (g.id = ids[h.at] and g.at >= addeds[h.at]) or now - g.at >= windows[h.at] as free
        from unnest(held) h(at)
             left join lateral (select * from semel.guard x where x.k = guards[h.at] limit 1) g on true
             left join lateral (select x.state, x.added from semel.notification x where x.id = g.id limit 1) n on true
    ), first as (
        select a.*, min(a.at) filter (where a.free) over (partition by a.k) as first from asked a
    ), judged as materialized (
        select f.at, f.k, f.state,
               (case when f.k is null or f.at = f.first then 1
                     when f.at > f.first or doubts[f.at] or f.state in ('pending', 'sending') then 2
                     else 3 end)::smallint as gate,   -- what may have left already is not called suppressed
               case when f.at > f.first then ids[f.first] else f.holder end as by
        from first f
    ), passed as (
        -- Not before it was added, also where the clock went back. Whoever passes again has the same one before it.
        update semel.guard g
        set id = ids[j.at], at = greatest(now, addeds[j.at]), until = greatest(g.until, now + windows[j.at]),
            before_ids = case when g.id = '' then '{}' when g.id = ids[j.at] and g.at >= addeds[j.at] then g.before_ids
                when j.state in ('pending', 'sending', 'uncertain') then (g.id || g.before_ids)[1:16]
                else array[g.id] end,   -- it may have been sent, and all windows end with it
            before_ats = case when g.id = '' then '{}' when g.id = ids[j.at] and g.at >= addeds[j.at] then g.before_ats
                when j.state in ('pending', 'sending', 'uncertain') then (g.at || g.before_ats)[1:16]
                else array[g.at] end
        from judged j where j.gate = 1 and g.k = j.k and g.k = any (watched)
    ), crossed as (
        update semel.dispatch d
        set state = 'sending', lane = providers[j.at], standing = standings[j.at], crossed = now, number = numbers[j.at],
            request = coalesce(d.request, requests[j.at])
        from judged j where j.gate = 1 and d.id = ids[j.at] and d.token = tokens[j.at] and d.id = any (ids)
    ), noted as (
        update semel.notification n
        set state = case j.gate when 1 then 'sending' else 'suppressed' end, changed = now,
            ended = case j.gate when 3 then 'suppressed' end,
            reason = case j.gate when 3 then 'its guard has let ' || encode(j.by, 'hex') || ' through' else '' end,
            by_id = case j.gate when 3 then j.by end,
            provider = case j.gate when 1 then providers[j.at] else n.provider end,
            possible = case j.gate when 1 then possibles[j.at] else n.possible end
        from judged j where j.gate in (1, 3) and n.id = ids[j.at] and n.id = any (ids)
    ), over as (
        delete from semel.dispatch d using judged j
        where j.gate = 3 and d.id = ids[j.at] and d.token = tokens[j.at] and d.id = any (ids)
    )
    select j.at, j.gate, j.by from judged j;
end $$;

-- ------------------------------------------------------------------------------------------------------------ recording

-- As record_1, but that a row may have another one that is written in its place: `instead` tells where it stands, behind the
-- others. It is the one that counts where the reference that a look-up has found belongs to another notification: two who
-- look at the same moment are kept apart by a lock, and in a batch what was sent comes before what was found.
create function semel.record_2(
    asked_ms bigint, ids bytea[], tokens bigint[], instead integer[], outcomes text[], states text[], reasons text[],
    providers text[], refs text[], possibles integer[], numbers integer[], tried text[], crossings bigint[],
    evidences text[], lives boolean[], dues bigint[], lanes text[], standings bytea[], keeps boolean[], frees boolean[]
)
returns setof integer
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    held integer[];
    used integer[];    -- which of the rows is written
    whose bytea[];     -- whom the reference names, where that is another one
begin
    select array_agg(h.at order by h.at) into held from (
        select a.at from unnest(ids, tokens) with ordinality a(id, token, at) join semel.dispatch d on d.id = a.id
        where d.id = any (ids) and d.token = a.token and d.taken
        order by d.id for update of d
    ) h;
    used := held;
    if exists (select from unnest(held) h(at) where instead[h.at] is not null) then
        perform pg_advisory_xact_lock(l.lock) from (
            select distinct hashtextextended(tried[h.at] || ' ' || refs[h.at], 6) as lock
            from unnest(held) h(at) where instead[h.at] is not null order by 1
        ) l;
        select array_agg(w.other order by w.at),
               array_agg(case when w.other is null then w.at else instead[w.at] end order by w.at)
        into whose, used
        from (
            select h.at, case when instead[h.at] is not null then coalesce(
                (select t.id from semel.attempt t
                 where t.reference = refs[h.at] and t.provider = tried[h.at] and t.id <> ids[h.at] limit 1),
                (select ids[o.at] from unnest(held) o(at)
                 where refs[o.at] = refs[h.at] and tried[o.at] = tried[h.at] and ids[o.at] <> ids[h.at]
                       and (instead[o.at] is null or o.at < h.at) limit 1)) end as other
            from unnest(held) h(at)
        ) w;
    end if;
    if held is not null then
        if true = any (frees) then   -- before an order key is locked by what ends, as in cross_2
            perform semel.free_guards_1(array(select ids[u.at] from unnest(held, used) u(at, row) where frees[u.row]));
        end if;
        with mine as materialized (
            select u.row as at, ids[u.at] as id, tokens[u.at] as token, u.other from unnest(held, used, whose) u(at, row, other)
        ), noted as (
            update semel.notification n
            set state = states[m.at], reason = reasons[m.at], provider = providers[m.at], possible = possibles[m.at],
                reference = coalesce(refs[m.at], n.reference), changed = now,
                ended = case when states[m.at] in ('failed', 'undelivered', 'suppressed', 'expired', 'cancelled')
                             then states[m.at] end
            from mine m where n.id = m.id and n.id = any (ids)
        ), told as (
            -- What is given back before anything left is no attempt, unless it ends so; a crossing that is taken back is one.
            insert into semel.attempt (id, token, outcome, number, provider, crossed, ended, evidence, reference)
            select m.id, m.token, outcomes[m.at], numbers[m.at], tried[m.at], crossings[m.at], now,
                   evidences[m.at] || coalesce(encode(m.other, 'hex'), ''), refs[m.at]
            from mine m join semel.dispatch d on d.id = m.id and d.id = any (ids)
            where outcomes[m.at] <> 'released' or not lives[m.at] or d.state = 'sending'
            on conflict do nothing
        ), over as (
            delete from semel.dispatch d using mine m
            where not lives[m.at] and d.id = m.id and d.token = m.token and d.id = any (ids)
        )
        update semel.dispatch d
        set taken = false, due = dues[m.at], state = states[m.at], lane = lanes[m.at], standing = standings[m.at],
            request = case when keeps[m.at] then d.request end
        from mine m where lives[m.at] and d.id = m.id and d.token = m.token and d.id = any (ids);
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

-- As witness_1, but that a reference that two share moves neither, that nothing is said about what was erased, and what a
-- word proves: that a message was refused moves only what is at that provider now, and was not sent there twice; of another
-- attempt it says nothing. And a word about one message of a notification that is known by another reference, or that another
-- provider has, tells of a second one: both may have arrived.
create function semel.witness_2(
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
    whose text;
    becomes text;
    unsent bytea[] := '{}';
begin
    known := array(
        select coalesce(a.id, (
            select (array_agg(o.id))[1] from (
                select distinct t.id from semel.attempt t where t.reference = a.reference and t.provider = a.provider limit 2
            ) o having count(*) = 1))
        from unnest(ids, refs, providers) with ordinality a(id, reference, provider, at) order by a.at);
    perform from semel.dispatch d where d.id = any (known) order by d.id for update;
    if 'refused' = any (says) then   -- before an order key is locked by what ends, as in cross_2
        perform from (
            select n.guarded from semel.notification n where n.id = any (known) and n.guarded is not null order by n.guarded
        ) n cross join lateral (select from semel.guard g where g.k = n.guarded limit 1 for update) g;
    end if;
    perform from semel.notification n where n.id = any (known) order by n.id for no key update;
    for place in 1 .. cardinality(known) loop
        select n.id, n.state, n.provider, n.possible, n.content is null as erased into was
        from semel.notification n where n.id = known[place];
        at := place;
        state := was.state;
        if was.id is not null then
            whose := coalesce(nullif(providers[place], ''), was.provider);
            if was.possible = 0 and ((
                was.state in ('accepted', 'delivered', 'undelivered') and whose <> was.provider   -- two have it
                and says[place] in ('accepted', 'delivered', 'undelivered')
            ) or (refs[place] is not null and exists (
                select from semel.attempt t
                where t.id = was.id and t.reference is not null and (t.provider, t.reference) <> (whose, refs[place])
            ))) then
                update semel.notification n set possible = 1 where n.id = was.id;
            end if;
            insert into semel.attempt (id, token, word, outcome, provider, ended, evidence, reference)
            values (was.id, 0, says[place], says[place], whose, coalesce(nullif(ats[place], 0), now),
                    case when was.erased then '' else evidences[place] end, refs[place])
            on conflict do nothing;
            select m.becomes into becomes from unnest(from_states, from_says, to_states) m(was, word, becomes)
            where m.was = was.state and m.word = says[place]
                  and (m.becomes <> 'failed' or (was.possible = 0 and whose = was.provider and not exists (
                      select from semel.attempt t   -- what was sent anew after a doubt is another message
                      where t.id = was.id and t.outcome in ('absent', 'not_sent') and t.provider = whose)));
            if becomes is not null then
                state := becomes;
                update semel.notification n
                set state = becomes, ended = case when becomes in ('failed', 'undelivered') then becomes end,
                    reason = case when was.erased then '' else evidences[place] end,
                    provider = whose, reference = coalesce(refs[place], n.reference), changed = now
                where n.id = was.id;
                with gone as (
                    delete from semel.dispatch d where d.id = was.id returning d.*
                )
                insert into semel.attempt (id, token, number, provider, crossed)   -- nobody will say what came of it
                select g.id, g.token, g.number, g.lane, g.crossed from gone g where g.state = 'sending'
                on conflict do nothing;
                if becomes = 'failed' then   -- it was refused: the next one of its guard may go
                    unsent := unsent || was.id;
                end if;
            end if;
        end if;
        return next;
    end loop;
    if unsent <> '{}' then
        perform semel.free_guards_1(unsent);   -- together: guards are locked in one order everywhere
    end if;
end $$;

-- --------------------------------------------------------------------------------------------------------------- adding

-- As before, but that what was forgotten while it was looked at is added anew: else whoever calls goes on without a message,
-- and without an answer. Whoever may execute it still may.
create or replace function semel.notify(
    key text, kind text, recipient text, channel text, body jsonb default null,
    tenant text default '', subject text default '', sender text default '', template text default '',
    data jsonb default '{}', not_after timestamptz default null, priority integer default 5, order_key text default '',
    guard_window interval default null, guard_key text default '', provider text default '', policy text default null,
    generation integer default 1,
    out id text, out status text
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    said jsonb;
    options jsonb;
    standing jsonb;
    content bytea;
    not_after_ms bigint;
    window_s double precision := extract(epoch from guard_window);
    own bytea;
    guarded bytea;
begin
    perform semel.check_text_1('key', key, 1), semel.check_text_1('kind', kind, 1),
            semel.check_text_1('recipient', recipient, 1), semel.check_text_1('tenant', tenant, 0),
            semel.check_text_1('order_key', order_key, 0), semel.check_text_1('provider', provider, 0),
            semel.check_text_1('sender', sender, 0), semel.check_text_1('template', template, 0),
            semel.check_text_1('guard_key', guard_key, 0);
    if channel is null or channel not in ('sms', 'email', 'voice', 'message', 'event') then
        raise exception 'channel=%: expected one of sms, email, voice, message, event', quote_nullable(channel)
            using errcode = 'invalid_parameter_value';
    elsif policy not in ('hold', 'presume_sent', 'resend', 'give_up') then
        raise exception 'policy=%: expected one of hold, presume_sent, resend, give_up', quote_literal(policy)
            using errcode = 'invalid_parameter_value';
    elsif coalesce(body, 'null') = 'null' and template = '' then
        raise exception 'a notification says something: give it a body or a template'
            using errcode = 'invalid_parameter_value';
    elsif subject is null or data is null or jsonb_typeof(data) <> 'object' then
        raise exception 'subject is a text, and data a JSON object' using errcode = 'invalid_parameter_value';
    elsif not isfinite(not_after) then
        raise exception 'not_after=%: leave it out for a message that is never too late', not_after
            using errcode = 'invalid_parameter_value';
    elsif priority is null or priority not between 0 and 9 then
        raise exception 'priority=%: expected 0 (first) to 9', quote_nullable(priority)
            using errcode = 'invalid_parameter_value';
    elsif generation is null or generation < 1 then
        raise exception 'generation=%: expected a whole number, 1 or more', quote_nullable(generation)
            using errcode = 'invalid_parameter_value';
    elsif window_s <= 0 or window_s > 400 * 86400 then
        raise exception 'guard_window=%: above 0, at most 400 days', guard_window using errcode = 'invalid_parameter_value';
    elsif guard_window is null and guard_key <> '' then
        raise exception 'guard_key: a guard needs its guard_window' using errcode = 'invalid_parameter_value';
    end if;

    said := case when coalesce(body, 'null') = 'null' then '{}' else jsonb_build_object('body', body) end
        || case when subject = '' then '{}' else jsonb_build_object('subject', subject) end
        || case when sender = '' then '{}' else jsonb_build_object('sender', sender) end
        || case when template = '' then '{}' else jsonb_build_object('template', template) end
        || case when data = '{}' then '{}' else jsonb_build_object('data', data) end;
    content := convert_to(said::text, 'UTF8');
    if jsonb_path_exists(said, '$.**{200 to last}') or jsonb_path_exists(said, '$.** ? (@ > 1e308 || @ < -1e308)') then
        raise exception 'body, data: more than 200 levels, or a number beyond 1e308, is not for everybody to read'
            using errcode = 'invalid_parameter_value';
    end if;
    if octet_length(content) > 256 * 1024 then
        raise exception 'the notification has % bytes; % is the most', octet_length(content), 256 * 1024
            using errcode = 'invalid_parameter_value';
    end if;

    not_after_ms := floor(extract(epoch from not_after) * 1000);
    options := jsonb_strip_nulls(jsonb_build_object(
        'order', order_key, 'priority', priority, 'not_after_ms', not_after_ms, 'provider', provider, 'policy', policy,
        'guard', case when window_s is not null then jsonb_build_object('window_s', window_s, 'key', guard_key) end));
    standing := jsonb_strip_nulls(jsonb_build_object(
        'provider', provider, 'not_after_ms', not_after_ms, 'policy', coalesce(policy, 'hold')));
    guarded := case when window_s is null then null
                    when guard_key <> '' then semel.digest_1('key', tenant, guard_key)
                    else semel.digest_1('recipient', tenant, recipient, kind) end;
    own := semel.digest_1(tenant, key, kind, recipient, channel, generation::text);

    id := encode(own, 'hex');
    loop
        select a.status into status from semel.add_1(
            null, array[own], array[semel.digest_1('who', tenant, recipient)], array[guarded],
            array[case when order_key <> '' then semel.digest_1('who', tenant, order_key) end],
            array[generation], array[priority::smallint], array[tenant], array[key], array[kind], array[recipient],
            array[channel], array[coalesce(nullif(provider, ''), '@' || channel)], array[options::text],
            array[convert_to(standing::text, 'UTF8')], array[content]
        ) a;
        exit when status is not null;   -- else it was forgotten meanwhile: by now it is a new one
    end loop;
end $$;
