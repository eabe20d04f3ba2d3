-- Lets go of the slots of a limit that have run out.
--
-- KEYS     the row, the holders, their amounts, the queue
-- ARGV     now_ms or 0 for the server's clock, the name of the limit
-- returns  how many leases they were of

-- include row.lua
-- include reclaim.lua
-- include queue.lua
-- include unpacked.lua

local now = tonumber(ARGV[1])
local own_clock = now == 0
if own_clock then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local packed = redis.pcall('GET', KEYS[1])
local row = type(packed) ~= 'table' and unpacked(packed)
if not row then
  return 0 -- it is corrupt: somebody has to hear of it
end
for i = 2, #row, WIDTH do
  if row[i] == ARGV[2] and row[i + REFILL] == 0 then
    local at = math.max(now, row[i + SETTLED])
    if not own_clock then
      row[i + SETTLED] = at
      redis.call('SET', KEYS[1], cmsgpack.pack(unpack(row)), 'KEEPTTL')
    end
    local more = redis.pcall('HGET', KEYS[3], MORE)
    local sound, gone, left = pcall(reclaim, KEYS[2], KEYS[3], at, tonumber(more) or false)
    if not sound then
      return 0
    end
    if gone > 0 and row[i + BLOCKED] <= at then
      local held = redis.call('ZCARD', KEYS[2]) * SLOT + (left or 0)
      wake(queue_of(redis.pcall('GET', KEYS[4])), row[i + CAPACITY] - held, row[i + CAPACITY])
    end
    return gone
  end
end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4]) -- the row was deleted, or the limit is no longer a concurrent one
return 0
