-- The buckets and slots of a row.
--
-- KEYS     the row; for each limit in ARGV the holders and their amounts
-- ARGV     names of concurrent limits
-- returns  for each limit its name and what settle.lua tells to describe a bucket; of a concurrent limit, in the place of
--          the tokens, a list: lease id, when it runs out, how much it holds, ...; or just which field is corrupt (unpacked.lua)

-- include row.lua
-- include unpacked.lua

local function held(holders, amounts)
  local out, ends = {}, redis.pcall('ZRANGE', holders, 0, -1, 'WITHSCORES')
  local more = redis.pcall('HGET', amounts, MORE)
  if type(more) == 'table' or (more and not tonumber(more)) then
    return nil
  end
  for n = 1, #ends, 2 do
    local milli = redis.pcall('HGET', amounts, ends[n]) or SLOT
    if type(milli) == 'table' or not tonumber(milli) then
      return nil
    end
    out[#out + 1] = ends[n]
    out[#out + 1] = ends[n + 1]
    out[#out + 1] = milli
  end
  return not ends.err and out
end

local slots = {}
for n = 1, #ARGV do
  slots[ARGV[n]] = held(KEYS[2 * n], KEYS[2 * n + 1])
  if not slots[ARGV[n]] then
    return CORRUPT_HOLDERS
  end
end

local packed = redis.pcall('GET', KEYS[1])
if type(packed) == 'table' then
  return CORRUPT_ROW
end
local row, flaw = unpacked(packed)
if flaw then
  return flaw
end
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
