-- The inbox: accepted events that are not handled yet, and the keys that identify them.
--
-- Its operations are functions. Each is one round trip although its statements must see each other's writes. Its plan
-- settings suit large tables from the first item on: a plan made for an empty table is kept, and would read all of a full
-- one. Arguments that end in `s` are arrays with one element per item. `clock_ms` is null for the server's clock.

create table semel.inbox (
    id             bigint primary key,
    token          bigint not null,
    due_ms         bigint not null,
    accepted_ms    bigint not null,
    retention_ms   bigint not null,
    expired_leases integer not null,
    state          smallint not null,
    digest         bytea not null,
    digests        bytea,
    lane           text collate "C" not null,
    tenant         text not null,
    only_handler   text not null,
    key_text       text not null,
    reason         text,
    decode_options bytea,
    traceparent    text,
    event          bytea not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- A take reads its start, the depths read all of it. `id + 0`: a look-up by id must not be planned through this index.
create index inbox_due on semel.inbox (lane, due_ms, (id + 0)) include (state, accepted_ms);

comment on column semel.inbox.id is 'from the sequence of tokens; becomes semel.dead_letter.id if the item is given up';
comment on column semel.inbox.token is 'of the newest take; in the WHERE of every later write. 0: never taken';
comment on column semel.inbox.due_ms is 'when it may be taken: its due time, or the end of the taker''s lease';
comment on column semel.inbox.retention_ms is 'of the dead letter, if the item is given up';
comment on column semel.inbox.expired_leases is 'takers that let their lease expire';
comment on column semel.inbox.state is '1 waiting, 2 taken';
comment on column semel.inbox.digest is 'of its claim, or one digest over those of all its claims';
comment on column semel.inbox.digests is 'all its keys; null: only digest';
comment on column semel.inbox.only_handler is 'the only handler of its lane that it is for; '''': all of them';
comment on column semel.inbox.key_text is 'the key, for operators';
comment on column semel.inbox.reason is 'why it was postponed last; null: never postponed';
comment on column semel.inbox.decode_options is 'null: the defaults';

-- Of concurrent transactions with one unknown key, one inserts row 0 and the others wait for it. A transaction that adds a
-- row to a known key locks the existing rows.
create table semel.inbox_key (
    id             bigint not null,
    number         integer not null,
    digest         bytea not null,
    fingerprint    bytea,
    order_position bytea,
    primary key (digest, number)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

comment on column semel.inbox_key.digest is 'of a claim, of an alias, or semel.inbox.digest';
comment on column semel.inbox_key.number is 'distinguishes the items of one key';
comment on column semel.inbox_key.id is 'semel.inbox.id; semel.dead_letter.id if the item was given up';
comment on column semel.inbox_key.fingerprint is 'of the payload; null: not compared';
comment on column semel.inbox_key.order_position is 'subject and position of an ordered claim; another one is another event';

-- Returns what the ledger (number is null) and the inbox store about keys, by one snapshot. `outcome` is null while the
-- event is not over. It is 0 for a dead letter whose retention has ended: the row exists, and no longer answers.
create function semel.known_keys(searched bytea[], now_ms bigint)
returns table (digest bytea, number integer, id bigint, fingerprint bytea, order_position bytea, outcome smallint, reason bytea)
language plpgsql stable set enable_seqscan = off set plan_cache_mode = force_generic_plan
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select y.digest, null::integer, y.token, y.fingerprint, null::bytea, case when y.state = 3 then y.outcome end,
           case when y.state = 3 and y.outcome <> 1 then y.result end
    from semel.key y where y.digest = any (searched) and (y.state <> 3 or y.until_ms > now_ms)
    union all
    select q.digest, q.number, q.id, q.fingerprint, q.order_position,
           case when i.id is not null then null when l.expires_ms > now_ms then 2::smallint else 0::smallint end,
           convert_to(l.reason, 'UTF8')
    from semel.inbox_key q
         left join lateral (select x.id from semel.inbox x where x.id = q.id limit 1) i on true
         left join lateral (select x.expires_ms, x.reason from semel.dead_letter x where x.id = q.id limit 1) l on true
    where q.digest = any (searched);
end $$;

-- Accepts arrivals of which no key is known, and returns what is known about the others. An arrival with `repeats` shares a
-- key with an earlier one of the batch; it is not accepted here. Positions in the batch begin with 1.
create function semel.accept(
    clock_ms bigint,
    item_digests bytea[], digest_lists bytea[], lanes text[], retentions bigint[], tenants text[], key_texts text[],
    events bytea[], decode_options bytea[], traceparents text[], repeats boolean[],
    key_items integer[], key_digests bytea[], key_fingerprints bytea[], key_positions bytea[],   -- one element per key
    out accepted_ms bigint, out ids bigint[], out accepted integer[],
    out known_digests bytea[], out known_numbers integer[], out known_ids bigint[], out known_fingerprints bytea[],
    out known_positions bytea[], out known_outcomes smallint[], out known_reasons bytea[]
)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    known bytea[];      -- keys of the batch that are stored already
    refused integer[];  -- arrivals that have one of them
    new_keys bytea[];
    inserted bytea[];
begin
    accepted_ms := now_ms;
    refused := array(select item from unnest(repeats) with ordinality w(repeated, item) where repeated);
    known := array(select digest from semel.known_keys(key_digests, now_ms));
    if known <> '{}' then
        refused := refused || array(
            select item from unnest(key_items, key_digests) q(item, digest) where digest in (select unnest(known)));
    end if;

    new_keys := array(
        select digest from unnest(key_items, key_digests) q(item, digest) where item not in (select unnest(refused)));
    if new_keys <> '{}' then   -- otherwise nothing is written, and no number is used
        ids := array(select nextval('semel.token') from generate_subscripts(repeats, 1));
        with added as (
            insert into semel.inbox_key (id, number, digest, fingerprint, order_position)
            select ids[item], 0, digest, fingerprint, order_position
            from unnest(key_items, key_digests, key_fingerprints, key_positions)
                 q(item, digest, fingerprint, order_position)
            where item not in (select unnest(refused))
            order by digest   -- the same order in every transaction: no deadlock
            on conflict do nothing
            returning digest
        )
        select array_agg(digest) into inserted from added;

        -- The insert may have waited for a transaction that settled one of the keys: look again.
        known := array(
            select y.digest from semel.key y where y.digest = any (new_keys) and (y.state <> 3 or y.until_ms > now_ms)
            union all select q.digest from semel.inbox_key q where q.digest = any (new_keys) and q.number > 0
        );
        if cardinality(inserted) is distinct from cardinality(new_keys) then
            known := known || array(select unnest(new_keys) except select unnest(inserted));
        end if;
        if known <> '{}' then
            refused := refused || array(
                select item from unnest(key_items, key_digests) q(item, digest) where digest in (select unnest(known)));
            delete from semel.inbox_key
            where digest = any (inserted) and id in (select ids[item] from unnest(refused) o(item));
        end if;

        accepted := array(
            select item from generate_subscripts(repeats, 1) a(item) where item not in (select unnest(refused)));
        insert into semel.inbox (id, token, due_ms, accepted_ms, retention_ms, expired_leases, state, digest, digests, lane,
                                 tenant, only_handler, key_text, decode_options, traceparent, event)
        select ids[item], 0, now_ms, now_ms, a.retention_ms, 0, 1, a.digest, a.digests, a.lane,
               a.tenant, '', a.key_text, a.decode_options, a.traceparent, a.event
        from unnest(item_digests, digest_lists, lanes, retentions, tenants, key_texts, decode_options, traceparents, events)
             with ordinality a(digest, digests, lane, retention_ms, tenant, key_text, decode_options, traceparent, event, item)
        where item not in (select unnest(refused));
    end if;

    if refused <> '{}' then
        select array_agg(s.digest), array_agg(s.number), array_agg(s.id), array_agg(s.fingerprint),
               array_agg(s.order_position), array_agg(s.outcome), array_agg(s.reason)
        into known_digests, known_numbers, known_ids, known_fingerprints, known_positions, known_outcomes, known_reasons
        from semel.known_keys(array(
            select digest from unnest(key_items, key_digests) q(item, digest) where item in (select unnest(refused))
        ), now_ms) s;
    end if;
end $$;

-- Takes the items of each lane that have been due for longest; of items due at the same time, the first accepted. Items
-- that another transaction has locked are skipped.
create function semel.take_inbox_items(lanes text[], limits integer[], lease_ms bigint, clock_ms bigint)
returns table (id bigint, token bigint, lane text, event bytea, tenant text, decode_options bytea, only_handler text,
               traceparent text, expired_leases integer, accepted_ms bigint, digest bytea)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
begin
    return query
    with due as materialized (
        select d.id, d.due_ms
        from unnest(lanes, limits) w(lane, most) cross join lateral (
            select i.id, i.due_ms from semel.inbox i where i.lane = w.lane and i.due_ms <= now_ms
            order by i.due_ms, i.id + 0 limit w.most for update skip locked
        ) d
    ), numbered as materialized (
        select o.id, nextval('semel.token') as token from (select * from due order by due_ms, id) o
    )
    update semel.inbox i
    set token = v.token, expired_leases = i.expired_leases + (i.state = 2)::integer, state = 2, due_ms = now_ms + lease_ms
    from numbered v where i.id = v.id
    returning i.id, i.token, i.lane, i.event, i.tenant, i.decode_options, i.only_handler, i.traceparent, i.expired_leases,
              i.accepted_ms, i.digest;
end $$;

-- Ends items, by pairs of id and token. `endings`: 1 finished, 2 postponed, 3 given up. Returns the pairs that were
-- current; nothing is written for the others.
create function semel.finish_inbox_items(
    ids bigint[], tokens bigint[], endings smallint[], delays bigint[], reasons text[], clock_ms bigint
)
returns table (id bigint, token bigint)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
    finished_ids bigint[];
    finished_tokens bigint[];
    finished_keys bytea[];
begin
    if 1 = any (endings) then
        with finished as (
            delete from semel.inbox i using unnest(ids, tokens, endings) a(id, token, ending)
            where i.id = a.id and i.token = a.token and i.state = 2 and a.ending = 1
            returning i.id, i.token, coalesce(i.digests, i.digest) as digests
        )
        select array_agg(f.id), array_agg(f.token), array_agg(f.digests)
        into finished_ids, finished_tokens, finished_keys from finished f;
        finished_keys := array(
            select substring(f.digests from p.start for 16)
            from unnest(finished_keys) f(digests) cross join lateral generate_series(1, length(f.digests), 16) p(start)
        );
        delete from semel.inbox_key q where q.digest = any (finished_keys) and q.id in (select unnest(finished_ids));
        return query select * from unnest(finished_ids, finished_tokens);
    end if;
    if 2 = any (endings) then
        return query
        update semel.inbox i
        set state = 1, due_ms = now_ms + a.delay_ms, reason = a.reason, expired_leases = 0   -- this taker did not vanish
        from unnest(ids, tokens, endings, delays, reasons) a(id, token, ending, delay_ms, reason)
        where i.id = a.id and i.token = a.token and i.state = 2 and a.ending = 2
        returning i.id, i.token;
    end if;
    if 3 = any (endings) then
        return query
        with given_up as (
            delete from semel.inbox i using unnest(ids, tokens, endings, reasons) a(id, token, ending, reason)
            where i.id = a.id and i.token = a.token and i.state = 2 and a.ending = 3
            returning i.*, a.reason as final_reason
        ), dead_letters as (
            insert into semel.dead_letter (id, digest, aliases, outcome, reason, attempts, settled_ms, expires_ms, tenant,
                                           handler, key_text, event, decode_options, lane, only_handler)
            select g.id, g.digest, g.digests, 2, g.final_reason, g.expired_leases, now_ms, now_ms + g.retention_ms, g.tenant,
                   coalesce(nullif(g.only_handler, ''), g.lane), g.key_text, g.event, g.decode_options, g.lane, g.only_handler
            from given_up g
        )
        select g.id, g.token from given_up g;
    end if;
end $$;

create function semel.inbox_depths(clock_ms bigint)
returns table (lane text, waiting bigint, taken bigint, oldest_ms bigint)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    now_ms bigint := coalesce(clock_ms, semel.now_ms());
begin
    return query
    select i.lane, count(*) filter (where i.state = 1 or i.due_ms <= now_ms),
           count(*) filter (where i.state = 2 and i.due_ms > now_ms), min(i.accepted_ms)
    from semel.inbox i group by i.lane;
end $$;
