-- Deletes the record of a done key that an operator replays by force.
--
-- KEYS: the dead letters of the key, then the records of the key and of its aliases.
-- ARGV: now | grace | the record as it was read | its content for the history | the operator and the reason
-- Returns 1, or 0 if the record has changed or is past its retention.
-- A retry after a lost reply finds its own decision and returns 1 again.

local now, grace, record = time_ms(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local until_ms, at = unpack('>I6I6', record, 9)
local token = sub(record, 2, 8)
if call('GET', KEYS[2]) ~= record or until_ms <= now then
  local kept = call('HGET', KEYS[1], token)
  return kept and sub(kept, -#ARGV[5]) == ARGV[5] and 1 or 0
end
for key = 2, #KEYS do
  local copy = call('GET', KEYS[key])
  if copy and sub(copy, 2, 8) == token then
    call('DEL', KEYS[key]) -- the next claim is granted
  end
end
local head = '\1' .. pack('>I6', at) .. sub(record, 21, 22) .. pack('>I6I6I4', now, until_ms - at, #ARGV[4])
call('HSET', KEYS[1], token, head .. ARGV[4] .. ARGV[5])
expire_decided(KEYS[1], now, grace)
return 1
