-- Changes records, all or none.
--
-- KEYS     the records by key (a hash: "version expires_at_ms JSON"), their keys in order (a sorted set),
--          and when they expire (a sorted set)
-- ARGV     now_ms or 0 for the server's clock, then for each change: what, key, expected version or "", expires_at_ms
--          or 0, JSON
-- returns  nothing, or the key of the first record that has not the version expected

local records, index, expiring = KEYS[1], KEYS[2], KEYS[3]
local SWEPT = 100

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function remove(key)
  redis.call('HDEL', records, key)
  redis.call('ZREM', index, key)
  redis.call('ZREM', expiring, key)
end

local function version(key)
  local stored = redis.call('HGET', records, key)
  if not stored then
    return 0
  end
  local number, expires_at = string.match(stored, '^(%d+) (%d+) ')
  expires_at = tonumber(expires_at)
  if not number then
    return 0 -- it is corrupt, and as good as none
  end
  return (expires_at > 0 and expires_at <= now) and 0 or tonumber(number)
end

local versions = {}
for i = 2, #ARGV, 5 do
  local key, expected = ARGV[i + 1], ARGV[i + 2]
  versions[i] = version(key)
  if expected ~= '' and tonumber(expected) ~= versions[i] then
    return key
  end
end

for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, SWEPT)) do
  remove(key)
end

for i = 2, #ARGV, 5 do
  local what, key, expires_at, value = ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4]
  if what == 'put' then
    redis.call('HSET', records, key, string.format('%d %s ', versions[i] + 1, expires_at) .. value)
    redis.call('ZADD', index, 0, key)
    if expires_at == '0' then
      redis.call('ZREM', expiring, key)
    else
      redis.call('ZADD', expiring, expires_at, key)
    end
  elseif what == 'delete' then
    remove(key)
  end
end
return false
