-- A part of other scripts.

local function is_whole(value, least, most)
  return type(value) == 'number' and value >= least and value <= most and value % 1 == 0
end

-- Which field of the limit at i is none that headgate has written (core/stored.py numbers them), or nil.
local function flaw_at(row, i)
  local capacity, refill, period = row[i + CAPACITY], row[i + REFILL], row[i + PERIOD]
  local is_quota = refill == -1 and row[1] == QUOTA_FORMAT
  if type(row[i]) ~= 'string' then
    return CORRUPT_ROW
  elseif not is_whole(capacity, 1, MOST) then
    return 1
  elseif not is_whole(refill, 0, MOST) and not is_quota then
    return 2
  elseif not is_whole(period, is_quota and -WHOLE or 1, LONGEST_PERIOD) or period == 0 then
    return 3
  elseif
    not is_whole(row[i + TOKENS], refill == 0 and 0 or -DEEPEST, refill == 0 and LATEST or capacity)
    or not is_whole(row[i + OWED], 0, MOST_OWED)
  then
    return 4
  elseif not is_whole(row[i + SETTLED], 0, LATEST) then
    return 5
  elseif not is_whole(row[i + REMAINDER], 0, is_quota and LATEST or period - 1) then
    return 6
  elseif not is_whole(row[i + BLOCKED], 0, LATEST) then
    return 7
  elseif not is_whole(row[i + REVISION], 0, WHOLE) then
    return 8
  elseif not is_whole(row[i + USED], -WHOLE, WHOLE) then
    return 9
  end
end

-- The same of all limits at once, in a fraction of the time. Comparing what is no number is an error.
local function are_sound(row)
  local least = row[1] == QUOTA_FORMAT and -1 or 0
  for i = 2, #row, WIDTH do
    local name, capacity, refill, period, tokens, settled, remainder, revision, blocked, owed, used =
      unpack(row, i, i + WIDTH - 1)
    if
      type(name) ~= 'string'
      or not (capacity >= 1 and capacity <= MOST and refill >= least and refill <= MOST)
      or not (period <= LONGEST_PERIOD and remainder >= 0 and (remainder < period or refill < 0))
      or (refill < 0 and not (period >= -WHOLE and period ~= 0 and remainder <= LATEST))
      or not (settled >= 0 and settled <= LATEST and blocked >= 0 and blocked <= LATEST)
      or not (revision >= 0 and revision <= WHOLE and owed >= 0 and owed <= MOST_OWED)
      or not (used >= -WHOLE and used <= WHOLE and tokens >= -DEEPEST and tokens <= LATEST)
      or (refill == 0 and tokens < 0)
      or (refill ~= 0 and tokens > capacity)
      or capacity % 1 + refill % 1 + period % 1 + tokens % 1 + settled % 1 ~= 0
      or remainder % 1 + revision % 1 + blocked % 1 + owed % 1 + used % 1 ~= 0
    then
      return false
    end
  end
  return true
end

-- A row as a list, an empty one if there is none; or nil and what is wrong with it.
local function unpacked(packed)
  if not packed then
    return { FORMAT }
  end
  local row = { pcall(cmsgpack.unpack, packed) }
  if not table.remove(row, 1) or (row[1] ~= FORMAT and row[1] ~= QUOTA_FORMAT and row[1] ~= FORMAT_BEFORE) then
    return nil, is_whole(row[1], FORMAT, 9) and NEWER_FORMAT or CORRUPT_ROW
  end
  if row[1] == FORMAT_BEFORE then
    local now = { FORMAT }
    for i = 2, #row, WIDTH - 1 do
      for n = 0, WIDTH - 2 do
        now[#now + 1] = row[i + n]
      end
      now[#now + 1] = 0
    end
    row = now
  end
  if #row % WIDTH ~= 1 then
    return nil, CORRUPT_ROW
  end
  local compared, sound = pcall(are_sound, row)
  if compared and sound then
    return row
  end
  for i = 2, #row, WIDTH do
    local flaw = flaw_at(row, i)
    if flaw then
      return nil, flaw
    end
  end
  return nil, CORRUPT_ROW
end
