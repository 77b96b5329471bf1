-- What one key's record looks like. Every script of this folder begins with these lines.
--
--   1 state (low three bits) and flags | 7 token | 6 until_ms | 6 at_ms
--   leased and waiting only:  6 first_ms | 6 retention_ms | 8 nonce of the claim
--   2 attempts | 16 fingerprint, if flagged | 2+n text | 2+n tenant | 2+n handler | the rest: result or reason
--   of what is leased or waits the rest is, if flagged, what came of its failed attempts, the oldest first; each is
--   8 at_ms | 4 attempt | 2+n reason, and that of the last one is why it waits
--
-- All numbers are big-endian. The token of a record that nobody holds (released) is 0.
local LEASED, WAITING, NOTHING, DEAD, UNCERTAIN, DONE = 1, 2, 3, 4, 5, 6 -- NOTHING: done, with the result null
local SUSPECT, PRINTED, ALIAS = 8, 16, 32 -- flags: a holder vanished before, a fingerprint, a copy under an alias
local TRIED, COPIED = 64, 128 -- flags: attempts have failed, there are copies under aliases
local TRIED_MAX = 16 -- attempts that are told: the first and the newest
local NOBODY = string.rep('\0', 7)
local SETTLED_BODY, LIVE_BODY = 23, 43 -- where the fingerprint or the text begins
local FIRST, RETENTION, OWN_NONCE, ATTEMPTS = 21, 27, 33, 41 -- in what is leased or waiting

local call, byte, char, sub = redis.call, string.byte, string.char, string.sub
local spread = unpack -- a table as arguments
local pack, unpack = struct.pack, struct.unpack

-- The store's own time, or the one that a test gives.
local function time_ms(given)
  if given ~= '' then
    return tonumber(given)
  end
  local now = call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Numbers beyond 14 digits would be written as 1e+15.
local function digits(number)
  return string.format('%.0f', number)
end

local function ttl(ms)
  return digits(math.max(ms, 1))
end

-- How long the doubt about a lapsed lease is kept: longer than an answer, since nobody has given one yet.
local function doubt(retention)
  return math.max(4 * retention, 3600000)
end

-- Many records with the same end: one command where the server has it (Valkey 9.1, Redis 8.4), which costs a third.
-- `writes` begins with two places for the command and its count, then keys and values by turns.
local function write_all(writes, ends)
  local last = #writes
  if last < 3 then
    return
  end
  writes[1], writes[2], writes[last + 1], writes[last + 2] = 'MSETEX', last / 2 - 1, 'PX', ends
  local done = redis.pcall(spread(writes))
  if type(done) == 'table' and done.err then
    for at = 3, last, 2 do
      call('SET', writes[at], writes[at + 1], 'PX', ends)
    end
  end
end

local function flag(flags, one)
  return flags % (2 * one) >= one
end

local function is_printed(record)
  return flag(byte(record), PRINTED)
end

-- Where the result or the reason begins. `from` is where the text does.
local function payload_at(record, from)
  for _ = 1, 3 do
    from = from + 2 + unpack('>H', record, from)
  end
  return from
end

-- Where the rest of a record begins that is leased or waits.
local function rest_at(record)
  return payload_at(record, is_printed(record) and LIVE_BODY + 16 or LIVE_BODY)
end

-- What came of the failed attempts of a record that is leased or waits.
local function tried_of(record)
  return flag(byte(record), TRIED) and sub(record, rest_at(record)) or ''
end

-- A grant makes room for what may come of it, so that its end has only to append.
local function with_room(tried)
  local starts, at = {}, 1
  while at <= #tried do
    starts[#starts + 1] = at
    at = at + 14 + unpack('>H', tried, at + 12)
  end
  if #starts < TRIED_MAX then
    return tried
  end
  return sub(tried, 1, starts[2] - 1) .. sub(tried, starts[#starts - TRIED_MAX + 3])
end

local function failed(record, now, reason)
  return pack('>I8I4H', now, unpack('>H', record, ATTEMPTS), #reason) .. reason
end

-- The letters of a key are kept for as long as the decisions about them; for ever, where one waits for a person.
local function keep_as_decided(key, now, grace)
  local kept = 0
  for _, value in ipairs(call('HVALS', key)) do
    local decided, retention = unpack('>I6I6', value, 10)
    if byte(value) == 0 then
      return
    end
    kept = math.max(kept, decided + retention)
  end
  call('PEXPIRE', key, ttl(kept - now + grace))
end

-- What is known of a subject: 1 flags | 8 newest position | 7 token | 6 acting until | 6 kept until | 16 holder.
-- The end of the holder's lease is written here too: its record may be in another script's hands (a slot that moves).
local HAS_NEWEST, HELD = 1, 2

local function subject_of(value)
  if not value then
    return { newest = false, held = false, token = NOBODY, acting = 0, kept = 0, holder = string.rep('\0', 16) }
  end
  local flags = byte(value)
  return {
    newest = flag(flags, HAS_NEWEST) and sub(value, 2, 9),
    held = flag(flags, HELD),
    token = sub(value, 10, 16),
    acting = unpack('>I6', value, 17),
    kept = unpack('>I6', value, 23),
    holder = sub(value, 29, 44),
  }
end

local function write_subject(key, subject, now, retention, grace)
  local flags = (subject.newest and HAS_NEWEST or 0) + (subject.held and HELD or 0)
  local value = char(flags) .. (subject.newest or '\0\0\0\0\0\0\0\0') .. subject.token
    .. pack('>I6I6', subject.acting, subject.kept) .. subject.holder
  local until_ms = math.max(subject.kept, subject.held and subject.acting + retention or 0)
  call('SET', key, value, 'PX', ttl(until_ms - now + grace))
end

-- Positions have 64 bits, more than a number of Lua. They come with 2^63 added, so that none is negative.
local function is_below(one, other)
  local a, b = unpack('>I4I4', one)
  local c, d = unpack('>I4I4', other)
  return a < c or (a == c and b < d)
end

-- Strict: replicas are waited for after this script. What it only read, others may have written a moment ago: a write
-- behind it is acknowledged only together with all of that.
local function mark(key)
  call('SET', key, call('GET', key) or '0')
end
