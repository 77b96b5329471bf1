-- Settles leases in order. The token is compared before every write.
--
-- KEYS: the token counter, then for each settlement its own key, its aliases, its subject, its dead letters and their
--       index.
-- ARGV: now | grace | strict | simple | routes | number of retentions | retentions … | settlements …
--   simple: every settlement has one key, all keys are different, and there is no dead letter
--   routes: for each settlement 1 kind | 1 flags (1 order, 2 dead letter) | 1 aliases | 2 number of its retention
--   settlement: 7 token | 2 number of each alias's retention | [8 position] [6 delay, for a retry] result or reason
--               A dead letter is the next argument: 2+n shortened reason | its content without the attempt log
-- Returns for each settlement 1, or 0 if the lease was lost and nothing was written.

local RETRY, RELEASE = WAITING, 7 -- the other kinds are the states that follow
local now, grace, strict = time_ms(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local simple, routes, retention_count = ARGV[4] == '1', ARGV[5], tonumber(ARGV[6])

local retentions = {}
for at = 1, retention_count do
  local ms = tonumber(ARGV[6 + at])
  retentions[at] = { ms = ms, ttl = ttl(ms + grace), head = pack('>I6I6', now + ms, now), writes = { '', '' } }
end

local function has(record, token)
  return record and string.find(record, token, 2, true) == 2
end

-- Whether this token was settled before with the same outcome.
local function settled_before(record, state, kind, payload)
  if state == WAITING then
    return kind == RETRY
  end
  if state ~= kind then
    return false
  end
  return sub(record, payload_at(record, has_fingerprint(record) and SETTLED_BODY + 16 or SETTLED_BODY)) == payload
end

local function write_final(key, record, kind, retention, payload)
  local flags = byte(record)
  -- a settled record has no attempt log; its dead letter has
  flags = flags - flags % 16 + kind - (flag(flags, HAS_ATTEMPTS) and HAS_ATTEMPTS or 0)
  local about = sub(record, ATTEMPTS, live_payload_at(record) - 1)
  local fresh = char(flags) .. sub(record, 2, 8) .. retention.head .. about .. payload
  call('SET', key, fresh, 'PX', retention.ttl)
end

local function write_waiting(key, record, delay, retention, reason)
  local flags = byte(record)
  flags = flags - flags % 8 + WAITING + (flag(flags, HAS_ATTEMPTS) and 0 or HAS_ATTEMPTS)
  local fresh = char(flags) .. sub(record, 2, 8) .. pack('>I6I6', now + delay, now)
    .. sub(record, FIRST) .. failed_attempt(record, now, reason)
  call('SET', key, fresh, 'PX', ttl(delay + retention.ms + grace))
end

-- Undo the claim: delete the record of a first attempt, else restore the earlier attempts.
local function release(key, record, retention)
  local flags, attempts = byte(record), unpack('>H', record, ATTEMPTS)
  if attempts == 1 then
    call('DEL', key)
    return
  end
  local suspect = flag(flags, SUSPECT)
  local state = suspect and LEASED or WAITING
  local fresh = char(flags - flags % 8 + state) .. NO_TOKEN .. pack('>I6I6', 0, now) .. sub(record, FIRST, ATTEMPTS - 1)
    .. pack('>H', attempts - 1) .. sub(record, LIVE_BODY)
  call('SET', key, fresh, 'PX', suspect and ttl(expired_lease_ms(retention.ms) + grace) or retention.ttl)
end

local function free_subject(key, token, applied, retention)
  local subject = subject_of(call('GET', key))
  local is_holder = subject.token == token
  if applied and not (subject.newest and is_below(applied, subject.newest)) then
    subject.newest = applied
  end
  if is_holder then
    subject.held = false
  end
  if applied or is_holder then
    subject.kept_until = math.max(subject.kept_until, now + retention.ms)
    write_subject(key, subject, now, retention.ms, grace)
  end
end

-- Store a dead letter. It does not expire before an operator has decided.
local function keep_dead_letter(key, index, record, retention, dead_letter)
  local size = unpack('>H', dead_letter)
  local attempt_log = attempt_log_of(record) .. failed_attempt(record, now, sub(dead_letter, 3, 2 + size))
  dead_letter = sub(dead_letter, 3 + size) .. '\198' .. pack('>I4', #attempt_log) .. attempt_log -- bytes in MessagePack
  local value = '\0' .. pack('>I6', now) .. sub(record, ATTEMPTS, ATTEMPTS + 1)
    .. pack('>I6I6I4', 0, retention.ms, #dead_letter) .. dead_letter
  call('HSET', key, sub(record, 2, 8), value)
  call('PERSIST', key)
  call('ZADD', index, digits(now), sub(key, -16) .. sub(record, 2, 8))
end

-- Any settlement, also with several keys or with a lost lease.
local function settle(settlement, kind, flags, aliases, retention, own, record, dead_letter)
  local token, from = sub(settlement, 1, 7), 8 + 2 * aliases
  local position = flag(flags, 1) and sub(settlement, from, from + 7)
  from = position and from + 8 or from
  local delay = 0
  if kind == RETRY then
    delay, from = unpack('>I6', settlement, from), from + 6
  end
  local payload = sub(settlement, from)
  if not has(record, token) then
    return '0'
  end
  local state = byte(record) % 8
  if state ~= LEASED then
    return settled_before(record, state, kind, payload) and '1' or '0'
  end
  local copies = { record }
  for at = 1, aliases do
    copies[at + 1] = call('GET', KEYS[own + at])
    if not has(copies[at + 1], token) then
      return '0' -- another lease has an alias, which stands for the same effect
    end
  end
  for at = 0, aliases do
    local key, copy = KEYS[own + at], copies[at + 1]
    if kind == RETRY then
      write_waiting(key, copy, delay, retention, payload)
    elseif kind == RELEASE then
      release(key, copy, retention)
    else
      local kept = at == 0 and retention or retentions[unpack('>H', settlement, 6 + 2 * at) + 1]
      write_final(key, copy, kind, kept, payload)
    end
  end
  local next_key = own + aliases + 1
  if position then
    free_subject(KEYS[next_key], token, (kind == DONE or kind == DONE_NULL) and position, retention)
    next_key = next_key + 1
  end
  if dead_letter then
    keep_dead_letter(KEYS[next_key], KEYS[next_key + 1], record, retention, dead_letter)
  end
  return '1'
end

local answers, key_at, at, count = {}, 1, 6 + retention_count, #ARGV
local known = simple and call('MGET', spread(KEYS, 2))
while at < count do
  at = at + 1
  local settlement = ARGV[at]
  local route = 5 * #answers
  local kind, flags, aliases, high, low = byte(routes, route + 1, route + 5)
  local retention = retentions[high * 256 + low + 1]
  key_at = key_at + 1
  local key = KEYS[key_at]
  local record = simple and known[key_at - 1] or call('GET', key)
  local state = record and byte(record)
  local is_leased = state and state < HAS_ATTEMPTS and state % 8 == LEASED
  if simple and kind == DONE_NULL and is_leased and has(record, settlement) then
    -- the usual case: write_final for all of them at once
    local writes = retention.writes
    local last = #writes
    writes[last + 1] = key
    writes[last + 2] = char(state - state % 16 + kind) .. settlement .. retention.head .. sub(record, ATTEMPTS)
    answers[#answers + 1] = '1'
  else
    local dead_letter
    if flag(flags, 2) then
      at = at + 1
      dead_letter = ARGV[at]
    end
    answers[#answers + 1] = settle(settlement, kind, flags, aliases, retention, key_at, record, dead_letter)
    key_at = key_at + aliases + (flag(flags, 1) and 1 or 0) + (dead_letter and 2 or 0)
  end
end
for index = 1, retention_count do
  write_all(retentions[index].writes, retentions[index].ttl)
end
if strict then
  write_marker(KEYS[1])
end
return table.concat(answers)
