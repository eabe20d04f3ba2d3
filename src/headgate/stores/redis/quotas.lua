-- Quotas, as in core/quota.py; a part of settle.lua.

quotas = {}

-- Without a calendar, a window begins when tokens are missing, and is over when none are.
function quotas.follow_tokens(row, i)
  if row[i + PERIOD] < 0 then
    return
  elseif row[i + OWED] == 0 and row[i + TOKENS] >= row[i + CAPACITY] then
    row[i + REMAINDER] = 0
  elseif row[i + REMAINDER] == 0 then
    row[i + REMAINDER] = row[i + SETTLED] + row[i + PERIOD]
  end
end

-- When the window is over, it is full again. If its calendar is that of the part, the next window is known.
function quotas.settle(row, i, part)
  row[i + SETTLED] = max(row[i + SETTLED], now)
  local ends = row[i + REMAINDER]
  if row[i + SETTLED] < ends then
    return
  end
  if ends > 0 then
    row[i + TOKENS], row[i + OWED] = row[i + CAPACITY], 0
  end
  row[i + REMAINDER] = row[i + PERIOD] == part[5] and part.ends or 0
end

function quotas.change_window(row, i, part)
  local ends, period, old_period = row[i + REMAINDER], part[5], row[i + PERIOD]
  if period < 0 then
    row[i + REMAINDER] = period == old_period and ends or part.ends
  else
    row[i + REMAINDER] = old_period > 0 and ends > 0 and ends + period - old_period or 0
  end
end

-- The moment at which a quota with a calendar needs the window of it, or nil if it needs none: one is open, or its calendar
-- is a newer one than that of the part.
local function wanted_at(part, first_key)
  local row = load(first_key + part[1])
  for i = 2, #row, WIDTH do
    if row[i] == part[2] and row[i + REFILL] < 0 then
      local at = max(now, row[i + SETTLED])
      if row[i + PERIOD] == part[5] then
        return at >= row[i + REMAINDER] and at or nil
      end
      return (part[7] == 0 or part[7] >= row[i + REVISION]) and at or nil
    end
  end
  return now
end

local postponed -- the keys of entries that will come again: what follows on these comes after them

-- Whether an entry has to come again with other windows, and says so.
function quotas.postpone(kind, last, first_key)
  if not kind.calendars and not postponed then
    return false
  end
  local moments, another = {}, false
  for p = 6, last do
    local part = kind[p]
    local at = part.ends and wanted_at(part, first_key)
    moments[#moments + 1] = at or now
    another = another or (at and (at < part.starts or at >= part.ends))
      or (postponed and postponed[KEYS[first_key + part[1]]])
  end
  if not another then
    return false
  end
  postponed = postponed or {}
  out[length + 1], out[length + 2] = ANOTHER_WINDOW, now
  length = length + 2
  for p = 6, last do
    length = length + 1
    out[length] = moments[p - 5]
    postponed[KEYS[first_key + kind[p][1]]] = true
  end
  return true
end
