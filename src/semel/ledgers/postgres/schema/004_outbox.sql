-- The outbox. `notification` is the truth about every message and grows; `dispatch` holds only what the relay still has
-- something to do with, so that taking costs the same however much was sent before. `attempt` is the evidence, and `guard`
-- has a life of its own: it outlives the messages that it was made for.
--
-- A message is written five times on its way: added, taken, crossed, recorded, and reported on. No index holds a column of
-- `notification` that any of these changes (but for `ended`, of a failure), so that they are HOT updates. An attempt is
-- written when it is known what came of it; until then its dispatch tells.

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
