-- The rows of a batch; a part of settle.lua.

-- include unpacked.lua

local rows, changed = {}, {}
local closed = {} -- by row, what it no longer counts and is put away if it is saved: name, settled, used, ...
local birth = now
if cold < 1000 then
  birth = packed_rows[#KEYS]
  if not birth then
    birth = now
    redis.call('SET', KEYS[#KEYS], birth)
  end
  birth = min(tonumber(birth) or now, now)
end

-- The row, or nil and what is wrong with it. A key that MGET finds nothing at may have something else than a row.
local function load(number)
  local key = KEYS[number]
  local row = rows[key]
  if row then
    return row
  end
  local packed, flaw = saved[key] or packed_rows[number]
  if not packed and redis.call('EXISTS', key) == 1 then
    return nil, CORRUPT_ROW
  end
  row, flaw = unpacked(packed)
  rows[key] = row
  return row, flaw
end

local function close(row, i)
  if row[i + USED] ~= 0 then
    local its = closed[row] or {}
    local n = #its
    its[n + 1], its[n + 2], its[n + 3] = row[i], row[i + SETTLED], row[i + USED]
    closed[row], row[i + USED] = its, 0
  end
end

local function count(row, i, amount)
  if kept > 0 then
    local used = row[i + USED] + amount
    if used >= EXACT or used <= -EXACT then
      close(row, i)
      used = amount
    end
    row[i + USED] = used
  end
end

-- Where the limit of a part is, and whether it begins only now: it is new, or was one of the other kind.
local function find(key, row, part, changes)
  local name, last, capacity, refill = part[2], #row, part[3], part[4]
  local i = last + 1
  for at = 2, last, WIDTH do
    if row[at] == name then
      if (row[at + REFILL] == 0) == (refill == 0) then
        return row, at, false
      end
      i = at
      break
    end
  end
  if i <= last then
    if changes then
      close(row, i)
      changed[key] = row -- even if it refuses
    else
      row, i = {}, 1
    end
  end
  local tokens = capacity
  if refill == 0 then
    tokens = 0
  elseif cold < 1000 then
    tokens = floor(capacity / 1000) * cold + floor(capacity % 1000 * cold / 1000)
  end
  row[i], row[i + CAPACITY], row[i + REFILL], row[i + PERIOD] = name, capacity, refill, part[5]
  row[i + TOKENS], row[i + SETTLED], row[i + REMAINDER] = tokens, birth, 0
  row[i + REVISION], row[i + BLOCKED], row[i + OWED], row[i + USED] = part[7], 0, 0, 0
  return row, i, true
end

-- Milliseconds until the bucket is like one that was never touched.
local function rest_of_life(row, i)
  if row[i + REFILL] == 0 then
    return max(row[i + SETTLED], row[i + ENDS], row[i + BLOCKED]) - now
  end
  local missing = row[i + CAPACITY] - row[i + TOKENS] + row[i + OWED] * BLOCK
  return max(row[i + SETTLED] + missing * row[i + PERIOD] / row[i + REFILL], row[i + BLOCKED]) - now
end

local function save(key, row)
  local life = kept
  for i = #row - WIDTH + 1, 2, -WIDTH do
    local left = rest_of_life(row, i)
    if left <= -margin then
      close(row, i)
      for _ = 1, WIDTH do
        table.remove(row, i)
      end
    elseif left > life then
      life = left
    end
  end
  local its = closed[row]
  for n = 1, its and #its or 0, 3 do
    put_away(key, its[n], its[n + 1], its[n + 2])
  end
  local milliseconds = string.format('%.0f', min(life * 1.000001 + margin + SPARE + 1, LONGEST))
  redis.call('PSETEX', key, milliseconds, cmsgpack.pack(unpack(row)))
end
