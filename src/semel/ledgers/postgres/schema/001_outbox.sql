-- The outbox. `notification` has a row for every message and grows. `dispatch` holds only notifications that the relay still
-- has to process, so that a take costs the same however much was sent stored. `attempt` is the evidence. `guard` outlives
-- the notifications that passed it.
--
-- A notification is written five times: added, taken, crossed, recorded, reported on. No index contains a column of
-- `notification` that these writes change (except `ended_as`, for a failure), so they are HOT updates. An attempt is written
-- when its outcome is known; until then its dispatch has the data.
--
-- Arguments of functions that end in `s` are arrays with one element per notification. `clock_ms` is null for the server's
-- clock. The operations of relays are in 001_relay.sql.

create table semel.notification (
    added_ms            bigint not null,
    changed_ms          bigint not null,
    generation          integer not null,
    possible_duplicates integer not null default 0,
    id                  bytea primary key,
    recipient_digest    bytea not null,
    guard_digest        bytea,
    suppressed_by       bytea,
    tenant              text collate "C" not null,
    key                 text collate "C" not null,
    kind                text collate "C" not null,
    recipient           text not null,
    channel             text not null,
    state               text not null default 'pending',
    ended_as            text,
    reason              text not null default '',
    provider            text not null default '',
    reference           text,
    options             jsonb not null,
    content             bytea
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
create index notification_recipient on semel.notification (recipient_digest, kind, added_ms);
create index notification_key on semel.notification (tenant, key, added_ms);
create index notification_added on semel.notification (added_ms);
create index notification_ended on semel.notification (ended_as, added_ms) where ended_as is not null;
create index notification_duplicates on semel.notification (added_ms) where possible_duplicates > 0;
-- By added_ms, which never changes: with changed_ms in an index, no update of a notification would be HOT.
create index notification_content on semel.notification (added_ms) where content is not null;

comment on column semel.notification.id is '16-byte digest of tenant, key, kind, recipient, channel, generation';
comment on column semel.notification.key is 'the caller''s business key';
comment on column semel.notification.recipient is ''''': erased';
comment on column semel.notification.recipient_digest is 'of tenant and recipient; stays when the recipient is erased';
comment on column semel.notification.guard_digest is 'semel.guard.digest; null: no guard';
comment on column semel.notification.content is 'JSON (UTF-8), byte by byte as first added; null: erased';
comment on column semel.notification.options is 'order, priority, not_after_ms, guard, provider, policy, as added';
comment on column semel.notification.ended_as is 'its state, if that is failed, undelivered, suppressed, expired or cancelled';
comment on column semel.notification.reference is 'the provider''s id of the message';
comment on column semel.notification.suppressed_by is 'id of the notification that passed the guard instead';

create table semel.dispatch (
    due_ms         bigint,
    blocked_due_ms bigint,
    token          bigint not null default 0,
    sequence       bigint not null,
    crossed_ms     bigint not null default 0,
    number         integer not null default 0,
    priority       smallint not null,
    taken          boolean not null default false,
    id             bytea primary key,
    order_digest   bytea,
    lane           text collate "C" not null,
    state          text not null default 'pending',
    tenant         text collate "C" not null,
    delivery_state bytea not null,
    request        bytea
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index dispatch_due on semel.dispatch (lane, priority, due_ms, sequence) where due_ms is not null;
create index dispatch_order on semel.dispatch (order_digest, sequence) where order_digest is not null;
-- The next two contain expressions, so that a query for one index is not planned through another while the table is small.
-- Each tenant has a share of a provider's rate. A tenant that has used its share is skipped with all its dispatches.
create index dispatch_share on semel.dispatch (lane, tenant, (priority + 0), due_ms, sequence) where due_ms is not null;
-- At most one dispatch of an order key is begun, and thousands may wait behind it.
create index dispatch_begun on semel.dispatch ((order_digest || ''::bytea)) where order_digest is not null and token > 0;

comment on column semel.dispatch.lane is 'a provider, or @channel';
comment on column semel.dispatch.due_ms is 'when a relay must process it, or when its lease expires; null: never';
comment on column semel.dispatch.blocked_due_ms is 'due_ms, while it is blocked behind an older one of its order key';
comment on column semel.dispatch.token is 'of the newest take; in the WHERE of every later write. 0: never taken';
comment on column semel.dispatch.taken is 'a relay has it, or vanished with it';
comment on column semel.dispatch.state is 'pending, sending, uncertain';
comment on column semel.dispatch.delivery_state is 'JSON';
comment on column semel.dispatch.crossed_ms is 'its newest crossing';
comment on column semel.dispatch.number is 'of its newest attempt';
comment on column semel.dispatch.request is 'of its first crossing to this provider';
comment on column semel.dispatch.order_digest is 'digest of tenant and order key; null: no order';
comment on column semel.dispatch.sequence is 'order of arrival';

create table semel.attempt (
    token      bigint not null,
    crossed_ms bigint not null default 0,
    ended_ms   bigint not null default 0,
    number     integer not null default 0,
    id         bytea not null,
    report     text not null default '',
    outcome    text not null default '',
    provider   text collate "C" not null,
    evidence   text not null default '',
    reference  text collate "C",
    decided_by text not null default '',
    primary key (id, token, report)
) with (autovacuum_vacuum_insert_scale_factor = 0.05);
-- Finds the notification that a callback refers to.
create index attempt_reference on semel.attempt (reference, provider) where reference is not null;

comment on column semel.attempt.token is 'of the dispatch or the decision; 0: a delivery report';
comment on column semel.attempt.report is 'status of a delivery report, each once; '''': not a delivery report';
comment on column semel.attempt.outcome is ''''': it has crossed, and its outcome is unknown';
comment on column semel.attempt.crossed_ms is '0: nothing was sent';
comment on column semel.attempt.ended_ms is '0: the outcome is unknown';
comment on column semel.attempt.decided_by is 'the operator, if one decided';

create table semel.guard (
    passed_ms   bigint not null,
    until_ms    bigint not null,
    digest      bytea primary key,
    id          bytea not null,
    earlier_ms  bigint[] not null default '{}',
    earlier_ids bytea[] not null default '{}'
) with (fillfactor = 70);
create index guard_until on semel.guard (until_ms);

comment on column semel.guard.digest is 'of the recipient and kind, or of the guard key';
comment on column semel.guard.id is 'the newest notification that passed; empty: none, or none that was sent';
comment on column semel.guard.passed_ms is 'when that one passed';
comment on column semel.guard.until_ms is 'end of the longest window';
comment on column semel.guard.earlier_ids is
    'notifications that passed before, newest first, back to one with a known outcome: the guard falls back to them if `id` '
    'was definitely not sent';
comment on column semel.guard.earlier_ms is 'when those passed';

create table semel.rate (
    next_ms  double precision not null,
    provider text collate "C" not null,
    tenant   text collate "C" not null,
    primary key (provider, tenant)
) with (fillfactor = 50);

comment on column semel.rate.next_ms is 'when the next message may be sent';

-- ---------------------------------------------------------------------------------------------------------------- add

-- Returns the first 16 bytes of SHA-256 over the parts, each prefixed with its length in decimal. Python computes the same.
create function semel.digest(variadic parts text[]) returns bytea
language sql immutable parallel safe
as $$
    select substring(sha256(string_agg(
        convert_to(octet_length(raw)::text || ':', 'UTF8') || raw, ''::bytea order by ordinal)) from 1 for 16)
    from (select convert_to(p.part, 'UTF8') as raw, p.ordinal from unnest(parts) with ordinality p(part, ordinal)) q
$$;

-- Two spellings of one JSON document are the same content: one may come from SQL and the other from Python. Documents that
-- jsonb cannot hold (the character 0) are compared byte by byte.
create function semel.same_content(one bytea, other bytea) returns boolean
language plpgsql immutable parallel restricted set search_path = pg_catalog, pg_temp
as $$
begin
    return one = other or convert_from(one, 'UTF8')::jsonb = convert_from(other, 'UTF8')::jsonb;
exception when data_exception or program_limit_exceeded then
    return false;
end $$;

-- Adds notifications, as if they had arrived one after the other. A known one is compared with the stored content; an erased
-- one matches any content.
create function semel.add_notifications(
    clock_ms bigint,
    ids bytea[], recipient_digests bytea[], guard_digests bytea[], order_digests bytea[], generations integer[],
    priorities smallint[], tenants text[], keys text[], kinds text[], recipients text[], channels text[], lanes text[],
    options text[], delivery_states bytea[], contents bytea[]
)
returns table (ordinal integer, status text, state text)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    added bytea[];
begin
    with new as (
        insert into semel.notification (id, recipient_digest, guard_digest, generation, tenant, key, kind, recipient, channel,
                                        options, content, added_ms, changed_ms)
        select a.id, a.recipient_digest, a.guard_digest, a.generation, a.tenant, a.key, a.kind, a.recipient, a.channel,
               a.options::jsonb, a.content, now_ms, now_ms
        from unnest(ids, recipient_digests, guard_digests, generations, tenants, keys, kinds, recipients, channels, options,
                    contents)
             with ordinality a(id, recipient_digest, guard_digest, generation, tenant, key, kind, recipient, channel, options,
                               content, ordinal)
        order by a.id, a.ordinal   -- the same order in every transaction: no deadlock
        on conflict do nothing
        returning id
    )
    select array_agg(id) into added from new;

    if added is not null then
        insert into semel.dispatch (id, lane, priority, due_ms, tenant, delivery_state, order_digest, sequence)
        select o.id, lanes[o.ordinal], priorities[o.ordinal], now_ms, tenants[o.ordinal], delivery_states[o.ordinal],
               order_digests[o.ordinal], nextval('semel.token')
        from (
            select a.id, min(a.ordinal) as ordinal from unnest(ids) with ordinality a(id, ordinal)
            where a.id in (select unnest(added)) group by a.id order by 2
        ) o;
    end if;

    return query
    select a.ordinal::integer,
           case when a.ordinal = a.first and a.id in (select unnest(added)) then 'added'
                when n.content is null or semel.same_content(n.content, a.content) then 'known'
                else 'conflict' end,
           n.state
    from (
        select u.*, min(u.ordinal) over (partition by u.id) as first
        from unnest(ids, contents) with ordinality u(id, content, ordinal)
    ) a join semel.notification n on n.id = a.id;
end $$;

create function semel.check_text(name text, value text, length_min integer) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null or char_length(value) not between length_min and 300 then
        raise exception '%: expected a text of % to 300 characters', name, length_min
            using errcode = 'invalid_parameter_value';
    end if;
    -- control and format characters, separators except the space, private use
    if value <> btrim(value, ' ') or value ~ ('[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890\u0891'
        '\u08E2\u1680\u180E\u2000-\u200F\u2028-\u202F\u205F-\u206F\u3000\uE000-\uF8FF\uFEFF\uFFF0-\uFFFB\U000110BD\U000110CD'
        '\U00013430-\U0001343F\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F'
        '\U000F0000-\U0010FFFF]') then
        raise exception '%: remove the white space around it, or the characters that cannot be printed', name
            using errcode = 'invalid_parameter_value';
    end if;
end $$;

-- Normalizes a recipient as values/notification.py does: international numbers of sms and voice in E.164, the domain of an
-- email address in lower case, everything else unchanged. Tests compare both implementations.
create function semel.normal_recipient(channel text, recipient text) returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
declare
    digits text := regexp_replace(recipient, '^tel:', '');
begin
    if channel in ('sms', 'voice') then
        if digits ~ '^(\+|00)' then
            digits := regexp_replace(digits, '\(0\)', '');   -- +49 (0)170: dialled inside the country only
        end if;
        digits := regexp_replace(translate(digits, ' ().-/', ''), '^00', '+');
        return case when digits ~ '^\+[1-9][0-9]{6,14}$' then digits else recipient end;
    elsif channel = 'email' and recipient ~ '^[^@ <>]+@[^@ <>]+$' then
        return split_part(recipient, '@', 1) || '@' || translate(
            split_part(recipient, '@', 2), 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz');
    end if;
    return recipient;
end $$;

-- Adds one notification in the caller's transaction: it exists when that commits, and not if it rolls back. `key` names the
-- fact that the message is about. The same call again is the same notification, and returns "known".
--
--     select id, status from semel.notify('order-4711-shipped', 'shipping', '+4915112345678', 'sms', '"On its way"',
--                                         guard_window => '1 day', not_after => now() + '2 hours');
--
-- status: added; known (added before with this content); conflict (added before with another content, which stays).
-- It runs with the rights of the schema's owner. Another role needs usage of the schema and execute on this function.
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
    message jsonb;
    options jsonb;
    delivery_state jsonb;
    content bytea;
    not_after_ms bigint;
    window_s double precision := extract(epoch from guard_window);
    id_digest bytea;
    guard_digest bytea;
begin
    perform semel.check_text('key', key, 1), semel.check_text('kind', kind, 1),
            semel.check_text('recipient', recipient, 1), semel.check_text('tenant', tenant, 0),
            semel.check_text('order_key', order_key, 0), semel.check_text('provider', provider, 0),
            semel.check_text('sender', sender, 0), semel.check_text('template', template, 0),
            semel.check_text('guard_key', guard_key, 0);
    if channel is null or channel not in ('sms', 'email', 'voice', 'message', 'event') then
        raise exception 'channel=%: expected one of sms, email, voice, message, event', quote_nullable(channel)
            using errcode = 'invalid_parameter_value';
    elsif policy not in ('hold', 'presume_sent', 'resend', 'give_up') then
        raise exception 'policy=%: expected one of hold, presume_sent, resend, give_up', quote_literal(policy)
            using errcode = 'invalid_parameter_value';
    elsif coalesce(body, 'null') = 'null' and template = '' then
        raise exception 'the notification is empty: pass a body or a template'
            using errcode = 'invalid_parameter_value';
    elsif subject is null or data is null or jsonb_typeof(data) <> 'object' then
        raise exception 'expected a text as subject, and a JSON object as data' using errcode = 'invalid_parameter_value';
    elsif not isfinite(not_after) then
        raise exception 'not_after=%: omit it for a message that does not expire', not_after
            using errcode = 'invalid_parameter_value';
    elsif priority is null or priority not between 0 and 9 then
        raise exception 'priority=%: expected 0 (first) to 9', quote_nullable(priority)
            using errcode = 'invalid_parameter_value';
    elsif generation is null or generation < 1 then
        raise exception 'generation=%: expected a whole number, 1 or more', quote_nullable(generation)
            using errcode = 'invalid_parameter_value';
    elsif window_s <= 0 or window_s > 400 * 86400 then
        raise exception 'guard_window=%: expected more than 0 and at most 400 days', guard_window
            using errcode = 'invalid_parameter_value';
    elsif guard_window is null and guard_key <> '' then
        raise exception 'guard_key: pass guard_window, too' using errcode = 'invalid_parameter_value';
    end if;

    recipient := semel.normal_recipient(channel, recipient);
    message := case when coalesce(body, 'null') = 'null' then '{}' else jsonb_build_object('body', body) end
        || case when subject = '' then '{}' else jsonb_build_object('subject', subject) end
        || case when sender = '' then '{}' else jsonb_build_object('sender', sender) end
        || case when template = '' then '{}' else jsonb_build_object('template', template) end
        || case when data = '{}' then '{}' else jsonb_build_object('data', data) end;
    content := convert_to(message::text, 'UTF8');
    if jsonb_path_exists(message, '$.**{200 to last}') or jsonb_path_exists(message, '$.** ? (@ > 1e308 || @ < -1e308)') then
        raise exception 'body, data: more than 200 levels, or a number beyond 1e308, cannot be read by every JSON parser'
            using errcode = 'invalid_parameter_value';
    end if;
    if octet_length(content) > 256 * 1024 then
        raise exception 'the notification has % bytes; the maximum is %', octet_length(content), 256 * 1024
            using errcode = 'invalid_parameter_value';
    end if;

    not_after_ms := floor(extract(epoch from not_after) * 1000);
    options := jsonb_strip_nulls(jsonb_build_object(
        'order', order_key, 'priority', priority, 'not_after_ms', not_after_ms, 'provider', provider, 'policy', policy,
        'guard', case when window_s is not null then jsonb_build_object('window_s', window_s, 'key', guard_key) end));
    delivery_state := jsonb_strip_nulls(jsonb_build_object(
        'provider', provider, 'not_after_ms', not_after_ms, 'policy', coalesce(policy, 'hold')));
    guard_digest := case when window_s is null then null
                         when guard_key <> '' then semel.digest('key', tenant, guard_key)
                         else semel.digest('recipient', tenant, recipient, kind) end;
    id_digest := semel.digest(tenant, key, kind, recipient, channel, generation::text);

    id := encode(id_digest, 'hex');
    loop
        select a.status into status from semel.add_notifications(
            null, array[id_digest], array[semel.digest('who', tenant, recipient)], array[guard_digest],
            array[case when order_key <> '' then semel.digest('who', tenant, order_key) end],
            array[generation], array[priority::smallint], array[tenant], array[key], array[kind], array[recipient],
            array[channel], array[coalesce(nullif(provider, ''), '@' || channel)], array[options::text],
            array[convert_to(delivery_state::text, 'UTF8')], array[content]
        ) a;
        exit when status is not null;   -- null: a known one was purged before it could be read; the next try adds it
    end loop;
end $$;
revoke all on function semel.notify from public;
