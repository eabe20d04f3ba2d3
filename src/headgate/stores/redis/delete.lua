-- Deletes the buckets and slots of a row. What was used stays, and with it the row, of nothing.
--
-- KEYS     the row
-- ARGV     how long usage is kept

-- include row.lua

local floor, key, kept = math.floor, KEYS[1], tonumber(ARGV[1])

-- include put_away.lua
-- include queue.lua
-- include unpacked.lua

local packed = redis.pcall('GET', key)
local row, flaw = {}, CORRUPT_ROW
if type(packed) ~= 'table' then
  row, flaw = unpacked(packed)
end
if flaw == NEWER_FORMAT then
  return redis.error_reply('unknown row format of ' .. key .. ': upgrade headgate')
elseif flaw then
  packed, row = false, {} -- what it has counted cannot be read; holders without a row are nobody's
end
for i = 2, #row, WIDTH do
  if row[i + REFILL] == 0 then
    local holders = key .. '#' .. row[i]
    wake(queue_of(redis.call('GET', holders .. '#waiting')), math.huge, math.huge)
    redis.call('UNLINK', holders, holders .. '#amounts', holders .. '#waiting')
  elseif row[i + USED] ~= 0 then
    put_away(key, row[i], row[i + SETTLED], row[i + USED])
  end
end
if packed and kept > 0 then
  redis.call('PSETEX', key, kept, cmsgpack.pack(FORMAT))
else
  redis.call('UNLINK', key)
end
