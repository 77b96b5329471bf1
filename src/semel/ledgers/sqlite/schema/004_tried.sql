-- What came of failed attempts (`semel.values.tried`). Of an open key it stands with its lease; of what has ended beside
-- its record, where there is one: what succeeds at once has none.

alter table semel_lease add column tried blob;

create table semel_tried (
    id       integer primary key,   -- semel_record.id
    tried    blob not null
) strict;
