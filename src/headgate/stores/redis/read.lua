-- The buckets of a row, as settle.lua keeps them: for each limit its name and what `describe` tells there.

local packed = redis.call('GET', KEYS[1])
local out = {}
if packed then
  local row = { cmsgpack.unpack(packed) }
  for i = 2, #row, 10 do
    local name, capacity, refill, period, tokens, settled, remainder, revision, blocked, owed = unpack(row, i, i + 9)
    for _, value in ipairs({ name, capacity, refill, period, tokens, owed, settled, remainder, blocked, revision }) do
      out[#out + 1] = value
    end
  end
end
return out
