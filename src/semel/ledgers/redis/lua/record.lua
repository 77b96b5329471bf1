-- The layout of a key's record, and functions that all scripts share. This file is prepended to every script.
--
--   1 state (low three bits) and flags | 7 token | 6 until_ms | 6 at_ms
--   leased and waiting only:  6 first_ms | 6 retention_ms | 8 nonce of the claim
--   2 attempts | 16 fingerprint, if flagged | 2+n key text | 2+n tenant | 2+n handler | payload
--   payload, settled: the result or the reason
--   payload, leased or waiting: the attempt log, if flagged, oldest first: 8 at_ms | 4 attempt | 2+n reason
--
-- The digits are sizes in bytes; 2+n is a text after its length. Numbers are big-endian. A released record has token 0.
local LEASED, WAITING, DONE_NULL, DEAD, UNCERTAIN, DONE = 1, 2, 3, 4, 5, 6 -- DONE_NULL: done with the result null
local SUSPECT, HAS_FINGERPRINT, ALIAS = 8, 16, 32 -- flags: a lease expired; fingerprint; copy under an alias
local HAS_ATTEMPTS, COPIED = 64, 128 -- flags: has an attempt log; has copies under aliases
local ATTEMPT_LOG_MAX = 16 -- entries of an attempt log: the first and the newest
local NO_TOKEN = string.rep('\0', 7)
local SETTLED_BODY, LIVE_BODY = 23, 43 -- offset of the fingerprint or the key text
local FIRST, RETENTION, NONCE, ATTEMPTS = 21, 27, 33, 41 -- offsets in a leased or waiting record

local call, byte, char, sub = redis.call, string.byte, string.char, string.sub
local spread = unpack -- a table as arguments
local pack, unpack = struct.pack, struct.unpack

-- The server's time, or the time of a test.
local function time_ms(test_time)
  if test_time ~= '' then
    return tonumber(test_time)
  end
  local now = call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Lua would write numbers of more than 14 digits as 1e+15.
local function digits(number)
  return string.format('%.0f', number)
end

local function ttl(ms)
  return digits(math.max(ms, 1))
end

-- How long an expired lease is kept: longer than a result, because its outcome is unknown.
local function expired_lease_ms(retention)
  return math.max(4 * retention, 3600000)
end

-- Write many records with the same expiry, with one command if the server has it (Valkey 9.1, Redis 8.4): a third of
-- the cost. `writes` has two free places, for the command and its count, and then alternating keys and values.
local function write_all(writes, ttl_ms)
  local last = #writes
  if last < 3 then
    return
  end
  writes[1], writes[2], writes[last + 1], writes[last + 2] = 'MSETEX', last / 2 - 1, 'PX', ttl_ms
  local done = redis.pcall(spread(writes))
  if type(done) == 'table' and done.err then
    for at = 3, last, 2 do
      call('SET', writes[at], writes[at + 1], 'PX', ttl_ms)
    end
  end
end

local function flag(flags, bit)
  return flags % (2 * bit) >= bit
end

local function has_fingerprint(record)
  return flag(byte(record), HAS_FINGERPRINT)
end

-- Offset of the payload. `from` is the offset of the key text.
local function payload_at(record, from)
  for _ = 1, 3 do
    from = from + 2 + unpack('>H', record, from)
  end
  return from
end

-- Offset of the payload of a leased or waiting record.
local function live_payload_at(record)
  return payload_at(record, has_fingerprint(record) and LIVE_BODY + 16 or LIVE_BODY)
end

-- The attempt log of a leased or waiting record.
local function attempt_log_of(record)
  return flag(byte(record), HAS_ATTEMPTS) and sub(record, live_payload_at(record)) or ''
end

-- Drop an old entry if the log is full. A grant does this, so that the settle can append without reading the log.
local function trimmed(attempt_log)
  local starts, at = {}, 1
  while at <= #attempt_log do
    starts[#starts + 1] = at
    at = at + 14 + unpack('>H', attempt_log, at + 12)
  end
  if #starts < ATTEMPT_LOG_MAX then
    return attempt_log
  end
  return sub(attempt_log, 1, starts[2] - 1) .. sub(attempt_log, starts[#starts - ATTEMPT_LOG_MAX + 3])
end

-- One entry of an attempt log.
local function failed_attempt(record, now, reason)
  return pack('>I8I4H', now, unpack('>H', record, ATTEMPTS), #reason) .. reason
end

-- The dead letters of a key expire with the last decision about them, and not while one is undecided.
local function expire_decided(key, now, grace)
  local kept_until = 0
  for _, value in ipairs(call('HVALS', key)) do
    local decided, retention = unpack('>I6I6', value, 10)
    if byte(value) == 0 then
      return
    end
    kept_until = math.max(kept_until, decided + retention)
  end
  call('PEXPIRE', key, ttl(kept_until - now + grace))
end

-- A subject: 1 flags | 8 newest position | 7 token | 6 held until | 6 kept until | 16 holder.
-- It repeats the end of the holder's lease, because this script may not have the key of the holder's record.
local HAS_NEWEST, HELD = 1, 2

local function subject_of(value)
  if not value then
    local nobody = string.rep('\0', 16)
    return { newest = false, held = false, token = NO_TOKEN, held_until = 0, kept_until = 0, holder = nobody }
  end
  local flags = byte(value)
  return {
    newest = flag(flags, HAS_NEWEST) and sub(value, 2, 9),
    held = flag(flags, HELD),
    token = sub(value, 10, 16),
    held_until = unpack('>I6', value, 17),
    kept_until = unpack('>I6', value, 23),
    holder = sub(value, 29, 44),
  }
end

local function write_subject(key, subject, now, retention, grace)
  local flags = (subject.newest and HAS_NEWEST or 0) + (subject.held and HELD or 0)
  local value = char(flags) .. (subject.newest or '\0\0\0\0\0\0\0\0') .. subject.token
    .. pack('>I6I6', subject.held_until, subject.kept_until) .. subject.holder
  local until_ms = math.max(subject.kept_until, subject.held and subject.held_until + retention or 0)
  call('SET', key, value, 'PX', ttl(until_ms - now + grace))
end

-- Positions have 64 bits, more than a Lua number can hold. 2^63 is added to them, so that none is negative.
local function is_below(position, other)
  local high, low = unpack('>I4I4', position)
  local other_high, other_low = unpack('>I4I4', other)
  return high < other_high or (high == other_high and low < other_low)
end

-- In strict mode the client waits for the replicas after this script. Records that the script only read may have been
-- written a moment ago. A write after them is acknowledged only together with them.
local function write_marker(key)
  call('SET', key, call('GET', key) or '0')
end
