-- Which windows the quotas of an entry need; a part of settle.lua.

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

local function is_postponed(kind, last, first_key)
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
