-- Statements on a caller's connection. The first one writes: a deferred transaction waits for the write lock there,
-- where SQLite lets it wait. They name `main`, because with WAL a transaction over several files is not atomic on power
-- loss.

-- name: add
-- Returns the new ids. The ledger's clock is the time since boot plus an offset (database.py); until a ledger is opened
-- after a boot, it is the wall clock. The statement starts with `insert`: Python's sqlite3 looks for this word to begin a
-- transaction.
insert into main.semel_new_notification (id, tenant, key, kind, recipient, recipient_digest, channel, generation, content,
                                         fingerprint, options, added_ms, lane, priority, delivery_state, order_digest)
select v.column1, v.column2, v.column3, v.column4, v.column5, v.column6, v.column7, v.column8, v.column9, v.column10,
       v.column11, clock.now, v.column13, v.column14, v.column15, v.column16
from (values {rows}) v cross join (
    select iif((select value from main.semel_meta where name = 'boot') = ?,
               (select value from main.semel_meta where name = 'boot_offset') + ?, ?) as now
) clock
where not exists (select 1 from main.semel_notification n where n.id = v.column1)
returning id

-- name: known
select id, fingerprint, state from main.semel_notification where id in ({keys})
