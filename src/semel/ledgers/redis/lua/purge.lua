-- Deletes expired keys. The server deletes most of them; this script deletes those that it keeps longer than needed.
--
-- KEYS: records, subjects and dead letters, distinguished by the character at position ARGV[2] of their names.
-- ARGV[1]: now. Returns the number of deleted records.

local now, kind_at = time_ms(ARGV[1]), tonumber(ARGV[2])

local function is_expired(record)
  local state, until_ms = byte(record) % 8, unpack('>I6', record, 9)
  if state == LEASED then
    return false -- live, or expired with an unknown outcome
  end
  return until_ms + (state == WAITING and unpack('>I6', record, RETENTION) or 0) <= now
end

local function purge_dead_letters(key)
  local dead_letters = call('HGETALL', key)
  for at = 1, #dead_letters, 2 do
    local decided, retention = unpack('>I6I6', dead_letters[at + 1], 10)
    if byte(dead_letters[at + 1]) ~= 0 and decided + retention <= now then
      call('HDEL', key, dead_letters[at])
    end
  end
end

local deleted = 0
for _, key in ipairs(KEYS) do
  local kind = sub(key, kind_at, kind_at)
  if kind == 'l' then
    purge_dead_letters(key)
  elseif kind == 'k' then
    local record = call('GET', key)
    if record and is_expired(record) then
      deleted = deleted + call('DEL', key)
    end
  else
    local value = call('GET', key)
    local subject = value and subject_of(value)
    if subject and not subject.held and subject.kept_until <= now then
      call('DEL', key)
    end
  end
end
return deleted
