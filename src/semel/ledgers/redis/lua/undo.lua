-- What is done steps back, because a person wants it to happen once more: all of it, or nothing.
--
-- KEYS: the letters of the key, then the key's own record and its aliases'.
-- ARGV: now | grace | the record as that person saw it | what is kept of it | who and why
-- Answer: 1, or 0: the record has changed meanwhile, or its retention is over.
-- Sent again because its reply was lost, it finds its own decision, and answers as before.

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
keep_as_decided(KEYS[1], now, grace)
return 1
