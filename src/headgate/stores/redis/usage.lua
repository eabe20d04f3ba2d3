-- What was used of a row, as of one moment.
--
-- KEYS     the row
-- ARGV     now_ms or 0 for the server's clock, usage_ms, the first hour, the one after the last
-- returns  limit, hour, millitokens, ...; of one limit and hour there may be several

-- include row.lua

local LONGEST_KEPT = 31622400000
local floor, key = math.floor, KEYS[1]

-- include unpacked.lua

local now, usage, first, after = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
first = math.max(first, floor((now - (usage > 0 and usage or LONGEST_KEPT)) / HOUR))
after = math.min(after, floor((now + WEEK) / HOUR)) -- clocks may disagree

local out = {}
local function tell(name, hour, used)
  if first <= hour and hour < after then
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = name, hour, used
  end
end

for week = floor(first * HOUR / WEEK), floor((after - 1) * HOUR / WEEK) do
  local counted = redis.call('HGETALL', key .. '##' .. week)
  for n = 1, #counted, 2 do
    local name, hour = string.match(counted[n], '^(.*):(%d+)$')
    tell(name, tonumber(hour), counted[n + 1])
  end
end
local packed = usage > 0 and redis.pcall('GET', key)
local row, flaw = {}
if type(packed) == 'string' then
  row, flaw = unpacked(packed)
  if flaw == NEWER_FORMAT then
    return redis.error_reply('unknown row format of ' .. key .. ': upgrade headgate')
  end
end
row = row or {}
for i = 2, #row, WIDTH do
  if row[i + USED] ~= 0 then
    tell(row[i], floor(row[i + SETTLED] / HOUR), string.format('%.0f', row[i + USED]))
  end
end
return out
