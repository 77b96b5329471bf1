-- Decides claims in order: the judgement of semel/values/decision.py.
--
--   claim             lease ends       retry is due                 settled             retention ends
--     │── leased: Busy ────│── takeover ►    │                            │── Settled ─────────│── as new ►
--     │── leased ─ Retry ─ waiting: Busy ────│── next attempt ►
--
-- KEYS: the counter of tokens, then for each claim its own key, its aliases, its subject.
-- ARGV: now | step of tokens | residue of tokens | grace | nonce | strict | simple | routes | number of profiles
--       profiles … | claims …
--   simple:  every claim has one key, and no two have the same
--   routes:  of each claim 1 profile | 1 flags (1 fingerprint, 2 order, 4 doubt first) | 1 aliases
--   profile: 6 lease_ms | 6 retention_ms | tenant | handler
--   claim:   2 place in its batch | 2 attempts: 1 | [8 position] [16 fingerprint] text
-- Answer: for each claim one of  record's head (first grant) | G… | B… | S… | T… | C;  the first head alone when all
-- are first grants: the tokens of the others follow it in steps.

local now = time_ms(ARGV[1])
local step, residue, grace, nonce = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local strict, simple, routes, profile_count = ARGV[6] == '1', ARGV[7] == '1', ARGV[8], tonumber(ARGV[9])

-- A token is higher than all before it, and never below the time: a failover may lose the counter, but not the time.
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
    ttl = ttl(lease + doubt(retention) + grace),
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

-- Why a record speaks against a claim; nil when it does not.
local function by_key(record, print, mine)
  local flags = byte(record)
  local state, until_ms = flags % 8, unpack('>I6', record, 9)
  local settled, live = state > WAITING, until_ms > now
  if settled and not live then
    return nil -- retention is over: gone, whether or not the server has swept
  end
  local body = settled and SETTLED_BODY or LIVE_BODY
  if flag(flags, PRINTED) then
    if print ~= '' and sub(record, body, body + 15) ~= print then
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
  if state == LEASED and sub(record, OWN_NONCE, OWN_NONCE + 7) == mine then
    return granted(record) -- this very claim was granted, and its answer was lost on the way
  end
  return 'B' .. pack('>I6', until_ms - now)
end

local function by_subject(subject, digest, position)
  if subject.newest and is_below(position, subject.newest) then
    return 'T' .. subject.newest
  end
  if subject.held and subject.holder ~= digest and subject.acting > now then
    return 'B' .. pack('>I6', subject.acting - now)
  end
end

-- A grant that has something to look back on. `records` are what was known under each of the claim's keys.
local function grant(keys, records, profile, print, mine, text)
  local attempts, first, takeover, printed, tried = 0, now, false, '', ''
  for at = 1, #keys do
    local record = records[at]
    if record and byte(record) % 8 <= WAITING then
      attempts = math.max(attempts, (unpack('>H', record, ATTEMPTS)))
      first = math.min(first, (unpack('>I6', record, FIRST)))
      takeover = takeover or byte(record) % 8 == LEASED
      if printed == '' and is_printed(record) then
        printed = sub(record, LIVE_BODY, LIVE_BODY + 15)
      end
      tried = tried == '' and tried_of(record) or tried
    end
  end
  printed = printed ~= '' and printed or print
  token = token + step
  local flags = LEASED + (takeover and SUSPECT or 0) + (printed ~= '' and PRINTED or 0)
    + (tried ~= '' and TRIED or 0)
  local rest = pack('>I7I6I6I6I6', token, now + profile.lease, now, first, profile.retention) .. mine
    .. pack('>H', math.min(attempts + 1, 65535)) .. printed .. text .. profile.names .. with_room(tried)
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
  if record == false then -- most claims: the key is new, and there is nothing to judge
    token = token + step
    answer = pack('>BI7', flags == 1 and LEASED + PRINTED or LEASED, token)
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
    local mine, from, position, print = nonce .. sub(claim, 1, 2), 5, nil, ''
    local keys, records = { key }, { record or call('GET', key) }
    if flag(flags, 2) then
      position, from = sub(claim, 5, 12), 13
    end
    if flag(flags, 1) then
      print, from = sub(claim, from, from + 15), from + 16
    end
    for alias = 1, aliases do
      keys[alias + 1] = KEYS[key_at + alias]
      records[alias + 1] = call('GET', KEYS[key_at + alias])
    end
    key_at = key_at + aliases
    for one = 1, #keys do
      answer = answer or (records[one] and by_key(records[one], print, mine)) or nil
    end
    local subject
    if position then
      key_at = key_at + 1
      subject = subject_of(call('GET', KEYS[key_at]))
      local in_doubt = records[1] and byte(records[1]) % 8 == LEASED
      if not (flag(flags, 4) and in_doubt) then
        answer = answer or by_subject(subject, sub(key, -16), position)
      end
    end
    if not answer then
      local fresh = grant(keys, records, profile, print, mine, sub(claim, from))
      answer = granted(fresh)
      if subject then
        subject.held, subject.holder, subject.token = true, sub(key, -16), sub(fresh, 2, 8)
        subject.acting = now + profile.lease
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
  mark(KEYS[1])
end
return all_first and answers[1] or table.concat(answers)
