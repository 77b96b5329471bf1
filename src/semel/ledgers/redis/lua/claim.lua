-- Decides claims in order, by the rules of semel/values/claim_rules.py.
--
--   claim             lease ends       retry is due                 settled             retention ends
--     │── leased: Busy ────│── takeover ►    │                            │── Settled ─────────│── as new ►
--     │── leased ─ Retry ─ waiting: Busy ────│── next attempt ►
--
-- KEYS: the token counter, then for each claim its own key, its aliases, its subject.
-- ARGV: now | step of tokens | residue of tokens | grace | nonce | strict | simple | routes | number of profiles
--       profiles … | claims …
--   simple:  every claim has one key, and all keys are different
--   routes:  for each claim 1 profile | 1 flags (1 fingerprint, 2 order, 4 doubt first) | 1 aliases
--   profile: 6 lease_ms | 6 retention_ms | tenant | handler
--   claim:   2 position in the batch | 2 attempts: 1 | [8 position] [16 fingerprint] key text
-- Returns for each claim one of  head of the record (first grant) | G… granted | B… busy | S… settled | T… stale |
-- C conflict.  If all are first grants: the first head only, because the other tokens follow in steps.

local now = time_ms(ARGV[1])
local step, residue, grace, nonce = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local strict, simple, routes, profile_count = ARGV[6] == '1', ARGV[7] == '1', ARGV[8], tonumber(ARGV[9])

-- A token is higher than all earlier tokens and never below the time: a failover may lose the counter, not the time.
local last = tonumber(call('GET', KEYS[1]) or '0')
local token = math.max(last, now * 2048 + residue - step)
local before = token

local profiles = {}
for at = 1, profile_count do
  local profile = ARGV[9 + at]
  local lease, retention = unpack('>I6I6', profile)
  profiles[at] = {
    lease = lease,
    retention = retention,
    ttl = ttl(lease + expired_lease_ms(retention) + grace),
    names = sub(profile, 13),
    writes = { '', '' },
    first = pack('>I6I6I6I6', now + lease, now, now, retention) .. nonce, -- of a first grant
  }
end

local function granted(record)
  local takeover = flag(byte(record), SUSPECT) and '\1' or '\0'
  local age = math.max(now - unpack('>I6', record, FIRST), 0)
  return 'G' .. sub(record, 2, 8) .. sub(record, ATTEMPTS, ATTEMPTS + 1) .. takeover .. pack('>I6', age)
end

-- The verdict by a record, or nil if the record permits a grant.
local function verdict_by_record(record, fingerprint, own_nonce)
  local flags = byte(record)
  local state, until_ms = flags % 8, unpack('>I6', record, 9)
  local settled, live = state > WAITING, until_ms > now
  if settled and not live then
    return nil -- past its retention, although the server has not deleted it yet
  end
  local body = settled and SETTLED_BODY or LIVE_BODY
  if flag(flags, HAS_FINGERPRINT) then
    if fingerprint ~= '' and sub(record, body, body + 15) ~= fingerprint then
      return 'C'
    end
    body = body + 16
  end
  if settled then
    local payload = sub(record, payload_at(record, body))
    return 'S' .. pack('>BI4', state, #payload) .. payload
  end
  if not live then
    return nil
  end
  if state == LEASED and sub(record, NONCE, NONCE + 7) == own_nonce then
    return granted(record) -- this claim was granted before, and its reply was lost
  end
  return 'B' .. pack('>I6', until_ms - now)
end

-- The verdict by a subject, or nil if it permits a grant.
local function verdict_by_subject(subject, digest, position)
  if subject.newest and is_below(position, subject.newest) then
    return 'T' .. subject.newest
  end
  if subject.held and subject.holder ~= digest and subject.held_until > now then
    return 'B' .. pack('>I6', subject.held_until - now)
  end
end

-- Grant a claim that is not the first of its key. `records` are the stored records of the claim's keys.
local function grant(keys, records, profile, fingerprint, own_nonce, text)
  local attempts, first, takeover, stored_fingerprint, attempt_log = 0, now, false, '', ''
  for at = 1, #keys do
    local record = records[at]
    if record and byte(record) % 8 <= WAITING then
      attempts = math.max(attempts, (unpack('>H', record, ATTEMPTS)))
      first = math.min(first, (unpack('>I6', record, FIRST)))
      takeover = takeover or byte(record) % 8 == LEASED
      if stored_fingerprint == '' and has_fingerprint(record) then
        stored_fingerprint = sub(record, LIVE_BODY, LIVE_BODY + 15)
      end
      attempt_log = attempt_log == '' and attempt_log_of(record) or attempt_log
    end
  end
  stored_fingerprint = stored_fingerprint ~= '' and stored_fingerprint or fingerprint
  token = token + step
  local flags = LEASED + (takeover and SUSPECT or 0) + (stored_fingerprint ~= '' and HAS_FINGERPRINT or 0)
    + (attempt_log ~= '' and HAS_ATTEMPTS or 0)
  local rest = pack('>I7I6I6I6I6', token, now + profile.lease, now, first, profile.retention) .. own_nonce
    .. pack('>H', math.min(attempts + 1, 65535)) .. stored_fingerprint .. text .. profile.names .. trimmed(attempt_log)
  for at = 1, #keys do
    local place = at > 1 and ALIAS or #keys > 1 and COPIED or 0
    call('SET', keys[at], char(flags + place) .. rest, 'PX', profile.ttl)
  end
  return char(flags) .. rest
end

local answers, key_at, all_first = {}, 1, true
local known = simple and call('MGET', spread(KEYS, 2))
for at = 1, #ARGV - 9 - profile_count do
  local claim = ARGV[9 + profile_count + at]
  local number, flags, aliases = byte(routes, 3 * at - 2, 3 * at)
  local profile = profiles[number + 1]
  key_at = key_at + 1
  local key, record, answer = KEYS[key_at], nil, nil
  if simple then
    record = known[at]
  elseif aliases == 0 and flags < 2 then
    record = call('GET', key)
  end
  if record == false then -- the usual case: the key is new
    token = token + step
    answer = pack('>BI7', flags == 1 and LEASED + HAS_FINGERPRINT or LEASED, token)
    local fresh = answer .. profile.first .. claim .. profile.names
    if simple then
      local writes = profile.writes
      local count = #writes
      writes[count + 1], writes[count + 2] = key, fresh
    else
      call('SET', key, fresh, 'PX', profile.ttl)
    end
  end
  if not answer then
    all_first = false
    local own_nonce, from, position, fingerprint = nonce .. sub(claim, 1, 2), 5, nil, ''
    local keys, records = { key }, { record or call('GET', key) }
    if flag(flags, 2) then
      position, from = sub(claim, 5, 12), 13
    end
    if flag(flags, 1) then
      fingerprint, from = sub(claim, from, from + 15), from + 16
    end
    for alias = 1, aliases do
      keys[alias + 1] = KEYS[key_at + alias]
      records[alias + 1] = call('GET', KEYS[key_at + alias])
    end
    key_at = key_at + aliases
    for index = 1, #keys do
      answer = answer or (records[index] and verdict_by_record(records[index], fingerprint, own_nonce)) or nil
    end
    local subject
    if position then
      key_at = key_at + 1
      subject = subject_of(call('GET', KEYS[key_at]))
      local in_doubt = records[1] and byte(records[1]) % 8 == LEASED
      if not (flag(flags, 4) and in_doubt) then
        answer = answer or verdict_by_subject(subject, sub(key, -16), position)
      end
    end
    if not answer then
      local fresh = grant(keys, records, profile, fingerprint, own_nonce, sub(claim, from))
      answer = granted(fresh)
      if subject then
        subject.held, subject.holder, subject.token = true, sub(key, -16), sub(fresh, 2, 8)
        subject.held_until = now + profile.lease
        write_subject(KEYS[key_at], subject, now, profile.retention, grace)
      end
    end
  end
  answers[at] = answer
end

for at = 1, profile_count do
  write_all(profiles[at].writes, profiles[at].ttl)
end
if token > before then
  call('SET', KEYS[1], digits(token))
elseif strict then
  write_marker(KEYS[1])
end
return all_first and answers[1] or table.concat(answers)
