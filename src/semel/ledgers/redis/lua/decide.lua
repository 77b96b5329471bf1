-- Records an operator's decision about a dead letter.
--
-- KEYS: the dead letters of the key, their index, then the records of the key and of its aliases.
-- ARGV: now | grace | token | the dead letter as it was read | 1 replay, 2 discard | the operator and the reason
-- Returns 1, or 0 if the dead letter has changed, or (replay) if the key has a newer outcome.
-- A retry after a lost reply finds its own decision and returns 1 again.

local REPLAY = '\1'
local now, grace, token = time_ms(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local dead_letter, decision = ARGV[4], char(tonumber(ARGV[5]))
local stored = call('HGET', KEYS[1], token)
if stored ~= dead_letter or byte(dead_letter) ~= 0 then
  return stored and sub(stored, 1, 1) == decision and sub(stored, -#ARGV[6]) == ARGV[6] and 1 or 0
end
if decision == REPLAY then
  local own = call('GET', KEYS[3])
  if own and sub(own, 2, 8) ~= token and byte(own) % 8 > WAITING and unpack('>I6', own, 9) > now then
    return 0
  end
  for at = 3, #KEYS do
    local record = call('GET', KEYS[at])
    if record and sub(record, 2, 8) == token then
      call('DEL', KEYS[at]) -- the next claim is granted
    end
  end
end
call('HSET', KEYS[1], token, decision .. sub(dead_letter, 2, 9) .. pack('>I6', now) .. sub(dead_letter, 16) .. ARGV[6])
call('ZREM', KEYS[2], sub(KEYS[1], -16) .. token)
expire_decided(KEYS[1], now, grace)
return 1
