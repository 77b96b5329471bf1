-- What keeps the outbox quick and small when much was sent, and when much waits.

-- ----------------------------------------------------------------------------------------------------------- forgetting

-- What is over and still says something, and what is known by its identity alone: each the longest over first.
create index semel_notification_said on semel_notification (changed)
    where content is not null and state not in ('pending', 'sending', 'uncertain');
create index semel_notification_erased on semel_notification (changed) where content is null;
create index semel_guard_until on semel_guard (until);

-- Who passed a guard and was refused for good leaves it to who passed before, the newest first: back to one that was sent.
alter table semel_guard add column before blob;   -- JSON: ids and times; null: nobody

-- Listings begin with the newest. SQLite uses an index of some rows where its condition is said in the same words.
create index semel_notification_added on semel_notification (added);
create index semel_notification_twice on semel_notification (added) where possible > 0;
drop index semel_notification_over;
create index semel_notification_over on semel_notification (state, added)
    where state in ('failed', 'undelivered', 'suppressed', 'expired', 'cancelled');

-- A message is known by any reference that its provider ever gave it, not only by the newest.
drop index semel_notification_reference;
create index semel_attempt_reference on semel_attempt (reference, provider) where reference is not null;

-- --------------------------------------------------------------------------------------------------------------- taking

alter table semel_dispatch add column tenant text not null default '';
alter table semel_dispatch add column behind integer;   -- `due`, while it is set aside behind an older one of its order key
update semel_dispatch set tenant = n.tenant from semel_notification n where n.id = semel_dispatch.id;

drop index semel_dispatch_due;
create index semel_dispatch_due on semel_dispatch (lane, priority, due, place) where due is not null;
-- Of a provider with a limit each tenant has a share: who has used it up is passed over, with all that it has waiting.
create index semel_dispatch_share on semel_dispatch (lane, tenant, priority, due, place) where due is not null;
drop index semel_dispatch_state;
create index semel_dispatch_state on semel_dispatch (state, lane, place);   -- all that is asked about the backlog

-- Whoever ends lets the next one of its order key come forward, whatever it was that ended it.
create trigger semel_dispatch_over after delete on semel_dispatch when old.ordered is not null
begin
    update semel_dispatch set due = behind, behind = null
    where behind is not null
          and id = (select id from semel_dispatch where ordered = old.ordered order by place limit 1);
end;

-- --------------------------------------------------------------------------------------------------------------- adding

-- A notification and its dispatch in one statement of whoever adds it. Places are given in the order of arrival.
create view semel_adding as
select n.id, n.tenant, n.key, n.kind, n.recipient, n.who, n.channel, n.generation, n.content, n.fp, n.options, n.added,
       d.lane, d.priority, d.standing, d.ordered
from semel_notification n join semel_dispatch d on d.id = n.id;

create trigger semel_adding_one instead of insert on semel_adding
begin
    update semel_meta set value = value + 1 where name = 'token';
    insert into semel_notification (id, tenant, key, kind, recipient, who, channel, generation, content, fp, options, state,
                                    reason, provider, possible, added, changed)
    values (new.id, new.tenant, new.key, new.kind, new.recipient, new.who, new.channel, new.generation, new.content, new.fp,
            new.options, 'pending', '', '', 0, new.added, new.added);
    insert into semel_dispatch (id, lane, priority, due, token, taken, state, standing, ordered, place, tenant)
    select new.id, new.lane, new.priority, new.added, 0, 0, 'pending', new.standing, new.ordered, value, new.tenant
    from semel_meta where name = 'token';
end;
