-- Forgets what is over. The server's own expiry does most of it; this is for what it would keep longer than it must.
--
-- KEYS: records, subjects and letters, told apart by the character at ARGV[2] of their names. ARGV[1]: now.
-- Answer: how many records are gone.

local now, kind_at = time_ms(ARGV[1]), tonumber(ARGV[2])

local function is_over(record)
  local state, until_ms = byte(record) % 8, unpack('>I6', record, 9)
  if state == LEASED then
    return false -- live, or in doubt
  end
  return until_ms + (state == WAITING and unpack('>I6', record, RETENTION) or 0) <= now
end

local function purge_letters(key)
  local letters = call('HGETALL', key)
  for at = 1, #letters, 2 do
    local decided, retention = unpack('>I6I6', letters[at + 1], 10)
    if byte(letters[at + 1]) ~= 0 and decided + retention <= now then
      call('HDEL', key, letters[at])
    end
  end
end

local gone = 0
for _, key in ipairs(KEYS) do
  local kind = sub(key, kind_at, kind_at)
  if kind == 'l' then
    purge_letters(key)
  elseif kind == 'k' then
    local record = call('GET', key)
    if record and is_over(record) then
      gone = gone + call('DEL', key)
    end
  else
    local value = call('GET', key)
    local subject = value and subject_of(value)
    if subject and not subject.held and subject.kept <= now then
      call('DEL', key)
    end
  end
end
return gone
