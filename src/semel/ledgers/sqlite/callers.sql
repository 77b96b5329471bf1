-- What is added on somebody else's connection, by name. The first statement writes: whoever has begun a deferred
-- transaction waits for the write lock there, where SQLite lets it wait. `main`: a transaction over several files in WAL
-- mode is not one when the power fails.

-- name: add
-- Returns what is new. The ledger's clock is the time since boot with an offset (opening.py); until a ledger was opened
-- after a boot it is the wall clock, with which that one begins. It begins with `insert`: by that word Python's sqlite3
-- knows that it has to begin a transaction.
insert into main.semel_adding (id, tenant, key, kind, recipient, who, channel, generation, content, fp, options, added, lane,
                               priority, standing, ordered)
select v.column1, v.column2, v.column3, v.column4, v.column5, v.column6, v.column7, v.column8, v.column9, v.column10,
       v.column11, clock.now, v.column13, v.column14, v.column15, v.column16
from (values {rows}) v cross join (
    select iif((select value from main.semel_meta where name = 'boot') = ?,
               (select value from main.semel_meta where name = 'boot_offset') + ?, ?) as now
) clock
where not exists (select 1 from main.semel_notification n where n.id = v.column1)
returning id

-- name: known
select id, fp, state from main.semel_notification where id in ({keys})
