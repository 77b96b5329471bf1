-- The inbox: letters that wait, and the keys that they are known by. Its questions are functions, so that each is one
-- round trip though it has steps that must see each other, and so that they are planned for large tables from the first
-- letter on: a plan made while a table is empty is kept, and would read all of it when it is full. A function is never
-- changed: a new version has a new number, and the old one stays for processes that still run.

create table semel.inbox (
    id       bigint primary key,
    token    bigint not null,
    due      bigint not null,
    accepted bigint not null,
    keep     bigint not null,
    lapses   integer not null,
    state    smallint not null,
    k        bytea not null,
    keys     bytea,
    lane     text collate "C" not null,
    tenant   text not null,
    only_handler text not null,
    text     text not null,
    reason   text,
    reading  bytea,
    trace    text,
    event    bytea not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Take reads its start, depths all of it. Not by id itself: a look-up of an id might be planned through it.
create index inbox_due on semel.inbox (lane, due, (id + 0)) include (state, accepted);

comment on column semel.inbox.id is 'out of the sequence of tokens; of a letter that is given up it becomes semel.letter.id';
comment on column semel.inbox.token is 'its taker''s; in the WHERE of every later write. 0: nobody has taken it yet';
comment on column semel.inbox.due is 'when it may be taken (ms): its time comes, or its taker''s lease lapses';
comment on column semel.inbox.keep is 'retention (ms), once it is given up';
comment on column semel.inbox.lapses is 'takers that vanished';
comment on column semel.inbox.state is '1 waiting, 2 taken';
comment on column semel.inbox.k is 'what it is known by: the digest of its claim, or one over those of all its claims';
comment on column semel.inbox.keys is 'all its keys, one after the other; null: only k';
comment on column semel.inbox.only_handler is 'the one handler of its lane that it is for; '''': all of them';
comment on column semel.inbox.text is 'the key, for people';
comment on column semel.inbox.reason is 'why it was put off the last time; null: it was not';
comment on column semel.inbox.reading is 'how it has to be read; null: plainly';
comment on column semel.inbox.trace is 'W3C traceparent; null: none';

-- Of all who bring a key that nobody knows, one inserts its row 0 and the others wait for that. Whoever adds to a key that
-- is there locks the rows that it has.
create table semel.inbox_key (
    id       bigint not null,
    n        integer not null,
    k        bytea not null,
    fp       bytea,
    place    bytea,
    primary key (k, n)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

comment on column semel.inbox_key.k is 'of a claim, of an alias, or semel.inbox.k';
comment on column semel.inbox_key.n is 'of several letters of one key';
comment on column semel.inbox_key.id is 'semel.inbox.id; once it is given up, semel.letter.id';
comment on column semel.inbox_key.fp is 'fingerprint of the payload; null: not compared';
comment on column semel.inbox_key.place is 'subject and position of an ordered claim: only the same place is the same event';

create function semel.now_ms() returns bigint language sql volatile
as $$ select floor(extract(epoch from clock_timestamp()) * 1000)::bigint $$;

-- What the ledger (n is null) and the inbox know of keys, by one snapshot. `outcome` is null for what is not over, and 0
-- for a letter that was given up and whose retention has ended: it answers no more, but its row is there.
create function semel.known_1(asked bytea[], now bigint)
returns table (k bytea, n integer, id bigint, fp bytea, place bytea, outcome smallint, reason bytea)
language plpgsql stable set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select y.k, null::integer, y.token, y.fp, null::bytea, case when y.state = 3 then y.outcome end,
           case when y.state = 3 and y.outcome <> 1 then y.result end
    from semel.key y where y.k = any (asked) and (y.state <> 3 or y.until > now)
    union all
    select q.k, q.n, q.id, q.fp, q.place,
           case when i.id is not null then null when l.expires > now then 2::smallint else 0::smallint end,
           convert_to(l.reason, 'UTF8')
    from semel.inbox_key q
         left join lateral (select x.id from semel.inbox x where x.id = q.id limit 1) i on true
         left join lateral (select x.expires, x.reason from semel.letter x where x.id = q.id limit 1) l on true
    where q.k = any (asked);
end $$;

-- Make letters of those arrivals of which nothing is known; tell about the others what is. An arrival of width 0 shares
-- a key with one before it in the batch, and is only told about.
create function semel.accept_1(
    asked_ms bigint,
    k bytea[], keys bytea[], lane text[], keep bigint[], tenant text[], text text[],   -- of each arrival
    event bytea[], reading bytea[], trace text[], width integer[],
    key_at integer[], key_k bytea[], key_fp bytea[], key_place bytea[],                -- of each key of an arrival
    out now bigint, out ids bigint[], out fresh integer[],
    out known_k bytea[], out known_n integer[], out known_id bigint[], out known_fp bytea[], out known_place bytea[],
    out known_outcome smallint[], out known_reason bytea[]
)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    met bytea[];       -- keys that something is known of
    others integer[];  -- arrivals that have one
    wanted bytea[];
    mine bytea[];
begin
    now := coalesce(asked_ms, semel.now_ms());
    others := array(select at from unnest(width) with ordinality w(width, at) where width = 0);
    met := array(select k from semel.known_1(key_k, now));
    if met <> '{}' then
        others := others || array(select at from unnest(key_at, key_k) q(at, k) where k in (select unnest(met)));
    end if;

    wanted := array(select k from unnest(key_at, key_k) q(at, k) where at not in (select unnest(others)));
    if wanted <> '{}' then   -- else nothing is written, and no number is spent
        ids := array(select nextval('semel.token') from generate_subscripts(width, 1));
        with added as (
            insert into semel.inbox_key (id, n, k, fp, place)
            select ids[at], 0, k, fp, place from unnest(key_at, key_k, key_fp, key_place) q(at, k, fp, place)
            where at not in (select unnest(others))
            order by k   -- in one order everywhere: nobody waits in a circle
            on conflict do nothing
            returning k
        )
        select array_agg(k) into mine from added;

        -- Whoever was waited for may have come to an end meanwhile: what is known now counts.
        met := array(
            select y.k from semel.key y where y.k = any (wanted) and (y.state <> 3 or y.until > now)
            union all select q.k from semel.inbox_key q where q.k = any (wanted) and q.n > 0
        );
        if cardinality(mine) is distinct from cardinality(wanted) then
            met := met || array(select unnest(wanted) except select unnest(mine));
        end if;
        if met <> '{}' then
            others := others || array(select at from unnest(key_at, key_k) q(at, k) where k in (select unnest(met)));
            delete from semel.inbox_key
            where k = any (mine) and id in (select ids[at] from unnest(others) o(at));
        end if;

        fresh := array(select at from generate_subscripts(width, 1) a(at) where at not in (select unnest(others)));
        insert into semel.inbox (id, token, due, accepted, keep, lapses, state, k, keys, lane, tenant, only_handler, text,
                                 reading, trace, event)
        select ids[at], 0, now, now, a.keep, 0, 1, a.k, a.keys, a.lane, a.tenant, '', a.text, a.reading, a.trace, a.event
        from unnest(k, keys, lane, keep, tenant, text, reading, trace, event)
             with ordinality a(k, keys, lane, keep, tenant, text, reading, trace, event, at)
        where at not in (select unnest(others));
    end if;

    if others <> '{}' then
        select array_agg(s.k), array_agg(s.n), array_agg(s.id), array_agg(s.fp), array_agg(s.place),
               array_agg(s.outcome), array_agg(s.reason)
        into known_k, known_n, known_id, known_fp, known_place, known_outcome, known_reason
        from semel.known_1(array(select k from unnest(key_at, key_k) q(at, k) where at in (select unnest(others))), now) s;
    end if;
end $$;

-- The longest due of each lane, and of what fell due together the first accepted. What somebody else is taking or
-- finishing at this moment is passed over, not waited for.
create function semel.take_1(lanes text[], rooms integer[], lease bigint, asked_ms bigint)
returns table (id bigint, token bigint, lane text, event bytea, tenant text, reading bytea, only_handler text, trace text,
               lapses integer, accepted bigint, k bytea)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
begin
    return query
    with due as materialized (
        select d.id, d.due
        from unnest(lanes, rooms) w(lane, room) cross join lateral (
            select i.id, i.due from semel.inbox i where i.lane = w.lane and i.due <= now
            order by i.due, i.id + 0 limit w.room for update skip locked
        ) d
    ), numbered as materialized (
        select o.id, nextval('semel.token') as token from (select * from due order by due, id) o
    )
    update semel.inbox i
    set token = v.token, lapses = i.lapses + (i.state = 2)::integer, state = 2, due = now + lease
    from numbered v where i.id = v.id
    returning i.id, i.token, i.lane, i.event, i.tenant, i.reading, i.only_handler, i.trace, i.lapses, i.accepted, i.k;
end $$;

-- End letters, by pairs of id and token. How: 1 it was handled, 2 it comes again, 3 it is given up. Returns the pairs that
-- were held; nothing was written for the others.
create function semel.finish_1(ids bigint[], tokens bigint[], hows smallint[], afters bigint[], reasons text[], asked_ms bigint)
returns table (id bigint, token bigint)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    gone_ids bigint[];
    gone_tokens bigint[];
    gone_keys bytea[];
begin
    if 1 = any (hows) then
        with gone as (
            delete from semel.inbox i using unnest(ids, tokens, hows) a(id, token, how)
            where i.id = a.id and i.token = a.token and i.state = 2 and a.how = 1
            returning i.id, i.token, coalesce(i.keys, i.k) as keys
        )
        select array_agg(g.id), array_agg(g.token), array_agg(g.keys) into gone_ids, gone_tokens, gone_keys from gone g;
        gone_keys := array(
            select substring(g.keys from p.at for 16)
            from unnest(gone_keys) g(keys) cross join lateral generate_series(1, length(g.keys), 16) p(at)
        );
        delete from semel.inbox_key q where q.k = any (gone_keys) and q.id in (select unnest(gone_ids));
        return query select * from unnest(gone_ids, gone_tokens);
    end if;
    if 2 = any (hows) then
        return query
        update semel.inbox i set state = 1, due = now + a.after, reason = a.reason, lapses = 0   -- somebody lived to say so
        from unnest(ids, tokens, hows, afters, reasons) a(id, token, how, after, reason)
        where i.id = a.id and i.token = a.token and i.state = 2 and a.how = 2
        returning i.id, i.token;
    end if;
    if 3 = any (hows) then
        return query
        with gone as (
            delete from semel.inbox i using unnest(ids, tokens, hows, reasons) a(id, token, how, reason)
            where i.id = a.id and i.token = a.token and i.state = 2 and a.how = 3
            returning i.*, a.reason as why
        ), kept as (
            insert into semel.letter (id, k, aliases, outcome, reason, attempts, at, expires, tenant, handler, text, event,
                                      reading, lane, only_handler)
            select g.id, g.k, g.keys, 2, g.why, g.lapses, now, now + g.keep, g.tenant,
                   coalesce(nullif(g.only_handler, ''), g.lane), g.text, g.event, g.reading, g.lane, g.only_handler
            from gone g
        )
        select g.id, g.token from gone g;
    end if;
end $$;

create function semel.depths_1(asked_ms bigint)
returns table (lane text, waiting bigint, taken bigint, oldest bigint)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
begin
    return query
    select i.lane, count(*) filter (where i.state = 1 or i.due <= now), count(*) filter (where i.state = 2 and i.due > now),
           min(i.accepted)
    from semel.inbox i group by i.lane;
end $$;

create index key_alias on semel.key (token) where owner is not null;   -- no settle writes it: aliases can be counted

-- Keys that are not settled, for people to see. Only the settled are so many that they must not be looked at for that.
create table semel.lingering (
    k        bytea primary key,
    token    bigint not null
);
comment on table semel.lingering is 'keys that were not settled when semel.meta ''settled'' passed their token';

insert into semel.meta (name, value) values ('settled', 0), ('marked', 0), ('marked_xid', 0), ('marked_at', 0);

-- Passes over at most `most` tokens, and only those below a mark that was made `rest` ms ago or more, and since whose
-- making every transaction has ended: what has such a token is there to be seen, or never will be.
create function semel.linger_1(most bigint, rest bigint, asked_ms bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    now bigint := coalesce(asked_ms, semel.now_ms());
    passed bigint;
    mark bigint := (select value from semel.meta where name = 'marked');
    goal bigint;
begin
    select value into passed from semel.meta where name = 'settled' for update skip locked;
    if passed is null then
        return 0;   -- somebody else is at it
    end if;
    delete from semel.lingering g
    where not exists (select from semel.key y where y.k = g.k and y.token = g.token and y.state <> 3);
    if passed >= mark then
        update semel.meta m
        set value = case m.name when 'marked' then (select last_value from semel.token) when 'marked_at' then now
                                else pg_current_xact_id()::text::bigint end
        where m.name in ('marked', 'marked_at', 'marked_xid');
        return 0;
    end if;
    if (select value from semel.meta where name = 'marked_at') > now - rest
       or (select value from semel.meta where name = 'marked_xid') >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint then
        return 0;
    end if;
    goal := least(mark, passed + most);
    insert into semel.lingering (k, token)
    select y.k, y.token from semel.key y where y.token > passed and y.token <= goal and y.state <> 3
    on conflict (k) do update set token = excluded.token;
    update semel.meta set value = goal where name = 'settled';
    return goal - passed;
end $$;

-- The letterbox of a ledger elsewhere: its letters wait for a person here, and answer no claim.
alter table semel.letter add column source bigint;
create index letter_source on semel.letter (k, source) where source is not null;
insert into semel.meta (name, value) values ('letterbox', 0);   -- is locked by whoever keeps one
comment on column semel.letter.source is 'the token of its lease in a ledger elsewhere; null: it is of this one';
