-- Letters of a ledger elsewhere, for which this file is the letterbox: records that answer no claim here.

alter table semel_record add column source integer;  -- the token that it was given up under there; null: given up here
