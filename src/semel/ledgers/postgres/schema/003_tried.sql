-- What came of failed attempts, and what a person had happen once more though it was done. Both columns begin as null,
-- so that adding them writes no row.

alter table semel.key add column tried bytea;
alter table semel.letter add column tried bytea, add column result bytea;

comment on column semel.key.tried is 'its failed attempts, one after the other: 8 at_ms, 4 attempt, 2 size, reason; null: none';
comment on column semel.letter.tried is 'its failed attempts, as in semel.key';
comment on column semel.letter.result is 'of what was done and is replayed (outcome 1): JSON of the result; null: JSON null';
comment on column semel.letter.outcome is '2 dead, 3 uncertain; 1 done, and replayed by force';
