-- What a person decides about a letter: all of it, or nothing.
--
-- KEYS: the letters of the key, their index, then the key's own record and its aliases'.
-- ARGV: now | grace | token | the letter as that person saw it | 1 replay, 2 discard | who and why
-- Answer: 1, or 0: the letter has changed meanwhile, or (replay) another record answers for the key by now.
-- Sent again because its reply was lost, it finds its own decision, and answers as before.

local REPLAY = '\1'
local now, grace, token = time_ms(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local letter, decision = ARGV[4], char(tonumber(ARGV[5]))
local stored = call('HGET', KEYS[1], token)
if stored ~= letter or byte(letter) ~= 0 then
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
      call('DEL', KEYS[at]) -- the old record steps back: the next claim is granted
    end
  end
end
call('HSET', KEYS[1], token, decision .. sub(letter, 2, 9) .. pack('>I6', now) .. sub(letter, 16) .. ARGV[6])
call('ZREM', KEYS[2], sub(KEYS[1], -16) .. token)
keep_as_decided(KEYS[1], now, grace)
return 1
