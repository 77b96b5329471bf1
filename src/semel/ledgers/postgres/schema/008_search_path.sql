-- Recipients have one spelling, and functions of this schema have a search path of their own.

-- As values/notification.py: numbers of sms and voice in E.164 where they are international, the domain of an email address in
-- lower case. Everything else stays as it is. Both sides are compared by tests.
create function semel.normal_recipient_1(channel text, recipient text) returns text
language plpgsql immutable parallel safe
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

-- As before, with the recipient in its normal form. Roles keep their right to execute it.
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

    recipient := semel.normal_recipient_1(channel, recipient);
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

-- Whoever calls these functions may have tables, types or operators of the same names in front of ours.
do $$
declare
    one regprocedure;
begin
    for one in
        select p.oid from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
        where l.lanname = 'plpgsql' and p.prokind = 'f'
              and p.pronamespace = (select c.relnamespace from pg_catalog.pg_class c
                                    where c.oid = 'semel.notification'::pg_catalog.regclass)
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', one);
    end loop;
end $$;
