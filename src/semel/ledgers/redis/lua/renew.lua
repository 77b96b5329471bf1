-- Extends leases by their full length from now. A lease that lost one of its keys or its subject is lost.
--
-- KEYS: the token counter, then for each lease its own key, its aliases, its subject.
-- ARGV: now | grace | strict | leases …
--   lease: 7 token | 6 lease_ms | 6 retention_ms | 1 aliases | 1 has a subject
-- Returns for each lease 1, or 0 if it is lost.

local now, grace, strict = time_ms(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local answers, key_at = {}, 1
for at = 4, #ARGV do
  local token = sub(ARGV[at], 1, 7)
  local lease, retention, aliases, ordered = unpack('>I6I6BB', ARGV[at], 8)
  local from = key_at + 1
  key_at = key_at + 1 + aliases + ordered
  local records, held = {}, true
  for key = from, from + aliases do
    local record = call('GET', KEYS[key])
    records[key] = record
    held = held and record and sub(record, 2, 8) == token
  end
  held = held and byte(records[from]) % 8 == LEASED
  local subject
  if held and ordered == 1 then
    subject = subject_of(call('GET', KEYS[key_at]))
    held = subject.held and subject.token == token
  end
  if held then
    for key = from, from + aliases do
      local record = sub(records[key], 1, 8) .. pack('>I6', now + lease) .. sub(records[key], 15)
      call('SET', KEYS[key], record, 'PX', ttl(lease + expired_lease_ms(retention) + grace))
    end
    if subject then
      subject.held_until = now + lease
      write_subject(KEYS[key_at], subject, now, retention, grace)
    end
  end
  answers[at - 3] = held and '1' or '0'
end
if strict then
  write_marker(KEYS[1])
end
return table.concat(answers)
