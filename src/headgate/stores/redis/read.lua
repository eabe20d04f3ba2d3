-- The buckets and slots of a row.
--
-- KEYS     the row; for each limit in ARGV the holders and their amounts
-- ARGV     names of concurrent limits
-- returns  for each limit its name and what settle.lua tells to describe a bucket; of a concurrent limit, in the place of
--          the tokens, a list: lease id, when it runs out, how much it holds, ...

-- include row.lua
-- include unpacked.lua

local function held(holders, amounts)
  local out, ends = {}, redis.call('ZRANGE', holders, 0, -1, 'WITHSCORES')
  for n = 1, #ends, 2 do
    out[#out + 1] = ends[n]
    out[#out + 1] = ends[n + 1]
    out[#out + 1] = redis.call('HGET', amounts, ends[n]) or SLOT
  end
  return out
end

local slots = {}
for n = 1, #ARGV do
  slots[ARGV[n]] = held(KEYS[2 * n], KEYS[2 * n + 1])
end

local row = unpacked(redis.call('GET', KEYS[1]), KEYS[1])
local out = {}
for i = 2, #row, WIDTH do
  local name, capacity, refill, period, tokens, settled, remainder, revision, blocked, owed =
    unpack(row, i, i + WIDTH - 1)
  if refill == 0 then
    tokens = slots[name] or {}
  end
  for _, value in ipairs({ name, capacity, refill, period, tokens, owed, settled, remainder, blocked, revision }) do
    out[#out + 1] = value
  end
end
return out
