-- What a provider's word proves, and what it does not.

-- As witness_2, but for two things. That a message was refused moves only what is at that provider now, and was not sent
-- twice: of another attempt it says nothing. And a word about one message of a notification that is known by another
-- reference tells of a second one: both may have arrived.
create function semel.witness_3(
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
begin
    known := array(
        select coalesce(a.id, (
            select (array_agg(o.id))[1] from (
                select distinct t.id from semel.attempt t where t.reference = a.reference and t.provider = a.provider limit 2
            ) o having count(*) = 1))
        from unnest(ids, refs, providers) with ordinality a(id, reference, provider, at) order by a.at);
    perform from semel.dispatch d where d.id = any (known) order by d.id for update;
    perform from semel.notification n where n.id = any (known) order by n.id for no key update;
    for place in 1 .. cardinality(known) loop
        select n.id, n.state, n.provider, n.guarded, n.added, n.possible, n.content is null as erased into was
        from semel.notification n where n.id = known[place];
        at := place;
        state := was.state;
        if was.id is not null then
            whose := coalesce(nullif(providers[place], ''), was.provider);
            if was.possible = 0 and refs[place] is not null and exists (
                select from semel.attempt t
                where t.id = was.id and t.reference is not null and (t.provider, t.reference) <> (whose, refs[place])
            ) then
                update semel.notification n set possible = 1 where n.id = was.id;
            end if;
            insert into semel.attempt (id, token, word, outcome, provider, ended, evidence, reference)
            values (was.id, 0, says[place], says[place], whose, coalesce(nullif(ats[place], 0), now),
                    case when was.erased then '' else evidences[place] end, refs[place])
            on conflict do nothing;
            select m.becomes into becomes from unnest(from_states, from_says, to_states) m(was, word, becomes)
            where m.was = was.state and m.word = says[place]
                  and (m.becomes <> 'failed' or (was.possible = 0 and whose = was.provider));
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
                    delete from semel.guard g where g.k = was.guarded and g.id = was.id and g.at >= was.added;
                end if;
            end if;
        end if;
        return next;
    end loop;
end $$;
