-- The outbox. `notification` is the truth about every message and grows; `dispatch` holds only what the relay still has
-- something to do with, so that taking costs the same however much was sent before. `attempt` is the evidence, and `guard`
-- has a life of its own: it outlives the messages that it was made for.
--
-- A message is written five times on its way: added, taken, crossed, recorded, and reported on. No index holds a column of
-- `notification` that any of these changes (but for `ended`, of a failure), so that they are HOT updates. An attempt is
-- written when it is known what came of it; until then its dispatch tells.
--
-- Locks are taken in one order everywhere: dispatches by their ids, then notifications, then guards by theirs.

create table semel.notification (
    added      bigint not null,
    changed    bigint not null,
    generation integer not null,
    possible   integer not null default 0,
    id         bytea primary key,
    who        bytea not null,
    guarded    bytea,
    by_id      bytea,
    tenant     text collate "C" not null,
    key        text collate "C" not null,
    kind       text collate "C" not null,
    recipient  text not null,
    channel    text not null,
    state      text not null default 'pending',
    ended      text,
    reason     text not null default '',
    provider   text not null default '',
    reference  text,
    options    jsonb not null,
    content    bytea
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index notification_who on semel.notification (who, kind, added);
create index notification_key on semel.notification (tenant, key, added);
create index notification_added on semel.notification (added);
create index notification_ended on semel.notification (ended, added) where ended is not null;
create index notification_twice on semel.notification (added) where possible > 0;

comment on column semel.notification.id is '16-byte digest of tenant, key, kind, recipient, channel, generation';
comment on column semel.notification.key is 'the caller''s business key';
comment on column semel.notification.recipient is ''''': erased';
comment on column semel.notification.who is 'digest of tenant and recipient: stays when the recipient is erased';
comment on column semel.notification.guarded is 'what its guard watches: semel.guard.k; null: it has none';
comment on column semel.notification.content is 'JSON (UTF-8), byte by byte as it was said first; null: erased';
comment on column semel.notification.options is 'order, priority, not_after_ms, guard, provider, policy: as they were said';
comment on column semel.notification.ended is 'its state, where that is failed, undelivered, suppressed, expired or cancelled';
comment on column semel.notification.reference is 'the provider''s own id';
comment on column semel.notification.by_id is 'what suppressed it';
comment on column semel.notification.possible is 'possible duplicates';

create table semel.dispatch (
    due      bigint,
    token    bigint not null default 0,
    place    bigint not null,
    crossed  bigint not null default 0,
    number   integer not null default 0,
    priority smallint not null,
    taken    boolean not null default false,
    id       bytea primary key,
    ordered  bytea,
    lane     text collate "C" not null,
    state    text not null default 'pending',
    tenant   text collate "C" not null,
    standing bytea not null,
    request  bytea
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index dispatch_due on semel.dispatch (lane, priority, due, place) where due is not null;
create index dispatch_order on semel.dispatch (ordered, place) where ordered is not null;

comment on column semel.dispatch.lane is 'a provider, or @channel';
comment on column semel.dispatch.due is 'when a relay has something to do, or when its lease lapses (ms); null: never';
comment on column semel.dispatch.token is 'its taker''s; in the WHERE of every later write. 0: nobody has taken it yet';
comment on column semel.dispatch.taken is 'in somebody''s hands';
comment on column semel.dispatch.state is 'pending, sending, uncertain';
comment on column semel.dispatch.standing is 'JSON of all that is known';
comment on column semel.dispatch.crossed is 'its newest crossing (ms)';
comment on column semel.dispatch.number is 'of its newest attempt';
comment on column semel.dispatch.request is 'of its first crossing to this provider';
comment on column semel.dispatch.ordered is 'digest of tenant and order key; null: in no order';
comment on column semel.dispatch.place is 'in the order of arrival';

create table semel.attempt (
    token     bigint not null,
    crossed   bigint not null default 0,
    ended     bigint not null default 0,
    number    integer not null default 0,
    id        bytea not null,
    word      text not null default '',
    outcome   text not null default '',
    provider  text collate "C" not null,
    evidence  text not null default '',
    reference text collate "C",
    by        text not null default '',
    primary key (id, token, word)
) with (autovacuum_vacuum_insert_scale_factor = 0.05);
-- A message is known by the word of its provider: what a callback names is found here.
create index attempt_reference on semel.attempt (reference, provider) where reference is not null;

comment on column semel.attempt.token is 'of the dispatch, or of the decision; 0: a provider''s own word';
comment on column semel.attempt.word is 'of a provider: what it says, once; else empty';
comment on column semel.attempt.outcome is ''''': it has crossed, and nobody has said what came of it';
comment on column semel.attempt.crossed is 'ms; 0: nothing left';
comment on column semel.attempt.ended is 'ms; 0: nobody has said';
comment on column semel.attempt.by is 'the person, where one decided';

create table semel.guard (
    at       bigint not null,
    until    bigint not null,
    k        bytea primary key,
    id       bytea not null
) with (fillfactor = 70);

comment on column semel.guard.k is 'what is watched: a digest';
comment on column semel.guard.id is 'the newest that passed; empty: nobody has, whoever made the row is about to';
comment on column semel.guard.at is 'when it did (ms)';
comment on column semel.guard.until is 'when nobody asks any more (ms)';

create table semel.rate (
    next     double precision not null,
    provider text collate "C" not null,
    tenant   text collate "C" not null,
    primary key (provider, tenant)
) with (fillfactor = 50);

comment on column semel.rate.next is 'when the next one may go (ms)';

-- ------------------------------------------------------------------------------------------------------------- adding

-- The first 16 bytes of SHA-256 over parts with their lengths, in decimal, before them. As Python makes it.
create function semel.digest_1(variadic parts text[]) returns bytea
language sql immutable parallel safe
as $$
    select substring(sha256(string_agg(
        convert_to(octet_length(raw)::text || ':', 'UTF8') || raw, ''::bytea order by at)) from 1 for 16)
    from (select convert_to(p.part, 'UTF8') as raw, p.at from unnest(parts) with ordinality p(part, at)) q
$$;

-- Two spellings of one JSON document say the same: one may have come from SQL and the other from elsewhere. What JSON of
-- this server cannot hold (the character 0) is the same only byte by byte.
create function semel.same_content_1(one bytea, other bytea) returns boolean
language plpgsql immutable parallel restricted
as $$
begin
    return one = other or convert_from(one, 'UTF8')::jsonb = convert_from(other, 'UTF8')::jsonb;
exception when data_exception or program_limit_exceeded then
    return false;
end $$;

-- Notifications, in order, as if they had come one after the other. What is new is added; of the others it is told whether
-- they say the same. An erased one says nothing any more.
create function semel.add_1(
    asked_ms bigint,
    ids bytea[], whos bytea[], guards bytea[], orders bytea[], generations integer[], priorities smallint[],
    tenants text[], keys text[], kinds text[], recipients text[], channels text[], lanes text[], options text[],
    standings bytea[], contents bytea[]
)
returns table (at integer, status text, state text)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    mine bytea[];
begin
    with new as (
        insert into semel.notification (id, who, guarded, generation, tenant, key, kind, recipient, channel, options, content,
                                        added, changed)
        select a.id, a.who, a.guarded, a.generation, a.tenant, a.key, a.kind, a.recipient, a.channel, a.options::jsonb,
               a.content, now, now
        from unnest(ids, whos, guards, generations, tenants, keys, kinds, recipients, channels, options, contents)
             with ordinality a(id, who, guarded, generation, tenant, key, kind, recipient, channel, options, content, at)
        order by a.id, a.at   -- in one order everywhere: nobody waits in a circle
        on conflict do nothing
        returning id
    )
    select array_agg(id) into mine from new;

    if mine is not null then
        insert into semel.dispatch (id, lane, priority, due, tenant, standing, ordered, place)
        select o.id, lanes[o.at], priorities[o.at], now, tenants[o.at], standings[o.at], orders[o.at], nextval('semel.token')
        from (
            select a.id, min(a.at) as at from unnest(ids) with ordinality a(id, at)
            where a.id in (select unnest(mine)) group by a.id order by 2
        ) o;
    end if;

    return query
    select a.at::integer,
           case when a.at = a.first and a.id in (select unnest(mine)) then 'added'
                when n.content is null or semel.same_content_1(n.content, a.content) then 'known'
                else 'conflict' end,
           n.state
    from (
        select u.*, min(u.at) over (partition by u.id) as first from unnest(ids, contents) with ordinality u(id, content, at)
    ) a join semel.notification n on n.id = a.id;
end $$;

create function semel.check_text_1(name text, said text, fewest integer) returns void
language plpgsql immutable
as $$
begin
    if said is null or char_length(said) not between fewest and 300 then
        raise exception '%: expected a text of % to 300 characters', name, fewest using errcode = 'invalid_parameter_value';
    end if;
    -- controls, formats, separators but for the space, private use
    if said <> btrim(said, ' ') or said ~ ('[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890\u0891'
        '\u08E2\u1680\u180E\u2000-\u200F\u2028-\u202F\u205F-\u206F\u3000\uE000-\uF8FF\uFEFF\uFFF0-\uFFFB\U000110BD\U000110CD'
        '\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F'
        '\U000F0000-\U0010FFFF]') then
        raise exception '%: white space around it or characters that cannot be printed would make it another', name
            using errcode = 'invalid_parameter_value';
    end if;
end $$;

-- Add one notification, in the transaction of whoever calls: it is there when that commits, and never was when it rolls
-- back. `key` is the fact that it is about; the same call again is the same notification, and answers "known".
--
--     select id, status from semel.notify('order-4711-shipped', 'shipping', '+4915112345678', 'sms', '"On its way"',
--                                         guard_window => '1 day', not_after => now() + '2 hours');
--
-- status: added; known, it was added before; conflict, it was added before and said something else, which stays.
-- It runs with the rights of the owner of the schema; another role needs usage of the schema and execute on this function.
create function semel.notify(
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
    select a.status into status from semel.add_1(
        null, array[own], array[semel.digest_1('who', tenant, recipient)], array[guarded],
        array[case when order_key <> '' then semel.digest_1('who', tenant, order_key) end],
        array[generation], array[priority::smallint], array[tenant], array[key], array[kind], array[recipient], array[channel],
        array[coalesce(nullif(provider, ''), '@' || channel)], array[options::text],
        array[convert_to(standing::text, 'UTF8')], array[content]
    ) a;
end $$;
revoke all on function semel.notify from public;

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
