-- Settles a batch of requests in order, each all or nothing, all at one moment.
--
-- KEYS     one entry's row keys after the other's; with a cold start, the key of the store's birth last
-- ARGV     [1] now_ms or 0 for the server's clock, cold_milli or 1000, and the runs: kind, requests, entries, ...: so
--          many entries, each so many equal requests of the kind; then for each kind
--          mode, max_wait_ms, block_ms, keep_milli, number of keys, and for each part of it
--          key of the entry, capacity, refill, period, amount, revision; then the limit name of each part.
--          All numbers are packed doubles (wire.py).
-- returns  for each entry how many of its requests passed, then for each part
--          the tokens left, if all simply passed, else the bucket as it was found (`describe`)
--
-- The arithmetic is core/bucket.py's, and has to be exact although numbers here are doubles, whole up to 2^53.
-- A token count that is a large debt is kept in two numbers (`owed`), and a product is divided before it is
-- complete (`multiply_divide`). Waits are not computed here: the client replays core.decide on what it is told.
--
-- Nearly all requests are plain: a take from the one bucket of a row, with nothing special about it. Those at the head
-- of the batch are done at once, without a table or a function being made for them. The first that is not begins the
-- general part, which does all that follow.

local TAKE, FORCE, PEEK = 0, 1, 2
local EXACT = 2 ^ 53
local BLOCK = 10 ^ 15 -- of debt: a bucket's tokens are row[i + TOKENS] - row[i + OWED] * BLOCK
local MAX_OWED = 1000
local LONGEST = 10 ^ 14
-- Rows live a while longer than they matter, so that the server's clock may step back so far without a trace. A clock
-- that was injected moves as it likes while the server's moves on.
local MARGIN = 60000
local INJECTED_CLOCK_MARGIN = 86400000

-- A row is FORMAT and then, for each limit, WIDTH values: the bucket at i has them at i + NAME, i + CAPACITY, ...
local FORMAT = 1
local NAME, CAPACITY, REFILL, PERIOD, TOKENS, SETTLED, REMAINDER, REVISION, BLOCKED, OWED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
local WIDTH = 10

local floor, min, max = math.floor, math.min, math.max

local head = { struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1]) }
local now, cold, last_run = head[1], head[2], #ARGV[1] / 8
local own_clock, margin = now == 0, INJECTED_CLOCK_MARGIN
if own_clock then
  local time = redis.call('TIME')
  now, margin = time[1] * 1000 + floor(time[2] / 1000), MARGIN
end

local kinds, arg = {}, 2
while ARGV[arg] do
  local size = #ARGV[arg] / 8
  local kind = { struct.unpack('<' .. string.rep('d', size), ARGV[arg]) }
  kind.parts, kind.names = (size - 5) / 6, arg
  kinds[#kinds + 1] = kind
  arg = arg + 1 + kind.parts
end

local packed_rows = redis.call('MGET', unpack(KEYS))
local saved = {} -- rows that were written already, by key
local out, length = {}, 0

-- Done plainly, or false.
local function done_plainly(kind, requests, number)
  local name, capacity, refill, period, amount = ARGV[kind.names + 1], kind[7], kind[8], kind[9], kind[10]
  local key = KEYS[number]
  local packed = saved[key] or packed_rows[number]
  local tokens, settled, remainder, revision = capacity, now, 0, kind[11]
  if packed then
    local format, its_name, its_capacity, its_refill, its_period, blocked, owed, more
    format, its_name, its_capacity, its_refill, its_period, tokens, settled, remainder, revision, blocked, owed, more =
      cmsgpack.unpack(packed)
    if
      its_name ~= name
      or its_capacity ~= capacity
      or its_refill ~= refill
      or its_period ~= period
      or blocked ~= 0
      or owed ~= 0
      or more
      or format ~= FORMAT
    then
      return false
    end
    local elapsed = now - settled
    if elapsed > 0 then
      settled = now
      if tokens < capacity then
        local credit = elapsed * refill + remainder
        if credit >= EXACT then
          return false
        end
        remainder = credit % period
        tokens = tokens + (credit - remainder) / period
        if tokens >= capacity then
          tokens, remainder = capacity, 0
        end
      end
    end
  end
  local passed = tokens < amount and 0 or min(requests, floor(tokens / amount))
  local left = tokens - passed * amount
  if passed > 0 or not own_clock then
    local life = (settled - now + (capacity - left) * period / refill) * 1.000001 + margin
    local row = cmsgpack.pack(FORMAT, name, capacity, refill, period, left, settled, remainder, revision, 0, 0)
    redis.call('PSETEX', key, string.format('%.0f', min(life + 1, LONGEST)), row)
    saved[key] = row
  end
  out[length + 1] = passed
  if passed == requests then
    out[length + 2] = left
    length = length + 2
  else
    out[length + 2], out[length + 3], out[length + 4], out[length + 5] = capacity, refill, period, tokens
    out[length + 6], out[length + 7], out[length + 8], out[length + 9] = 0, settled, remainder, 0
    out[length + 10] = revision
    length = length + 10
  end
  return true
end

local run, entry, first_key = 3, 1, 1
while run <= last_run do
  local kind, requests, entries = kinds[head[run]], head[run + 1], head[run + 2]
  if kind[1] ~= TAKE or kind[2] ~= 0 or kind.parts ~= 1 or kind[10] == 0 or cold < 1000 then
    break
  end
  local step, level = kind[5], kind[6]
  while entry <= entries and done_plainly(kind, requests, first_key + level) do
    entry, first_key = entry + 1, first_key + step
  end
  if entry <= entries then
    break
  end
  run, entry = run + 3, 1
end
if run > last_run then
  return out
end

-- The general part

-- Quotient and remainder of x * y / m, for x < m < 2^51: Horner's rule in a base that keeps every step exact.
local function multiply_divide(x, y, m)
  local product = x * y
  if product < EXACT then
    local rest = product % m
    return (product - rest) / m, rest
  end
  local base = floor(2 ^ 52 / m)
  local place, quotient, rest = 1, 0, 0
  while place * base <= y do
    place = place * base
  end
  while place >= 1 do
    local digit = floor(y / place)
    y = y - digit * place
    local step = rest * base + x * digit
    rest = step % m
    quotient = quotient * base + (step - rest) / m
    place = place / base
  end
  return quotient, rest
end

-- Buckets. One form is kept to: tokens from -BLOCK on, and below zero as long as anything is owed.

local function give(row, i, amount)
  local tokens, owed = row[i + TOKENS], row[i + OWED]
  while amount > BLOCK and owed > 0 do
    amount, owed = amount - BLOCK, owed - 1
  end
  tokens = tokens + amount
  if tokens >= 0 and owed > 0 then
    tokens, owed = tokens - BLOCK, owed - 1
  end
  if owed == 0 and tokens >= row[i + CAPACITY] then
    tokens = row[i + CAPACITY]
    row[i + REMAINDER] = 0
  end
  row[i + TOKENS], row[i + OWED] = tokens, owed
end

local function take(row, i, amount)
  local tokens, owed = row[i + TOKENS], row[i + OWED]
  while amount > BLOCK do
    amount, owed = amount - BLOCK, owed + 1
  end
  tokens = tokens - amount
  if tokens < -BLOCK then
    tokens, owed = tokens + BLOCK, owed + 1
  elseif tokens >= 0 and owed > 0 then
    tokens, owed = tokens - BLOCK, owed - 1
  end
  if owed >= MAX_OWED then
    tokens, owed = -BLOCK, MAX_OWED - 1
  end
  row[i + TOKENS], row[i + OWED] = tokens, owed
end

local function earn(row, i, elapsed)
  local refill, period, remainder = row[i + REFILL], row[i + PERIOD], row[i + REMAINDER]
  local credit = elapsed * refill + remainder
  local gained
  if credit < EXACT then
    remainder = credit % period
    gained = (credit - remainder) / period
  else
    local part, rest = refill % period
    gained, rest = multiply_divide(part, elapsed, period)
    remainder = remainder + rest
    if remainder >= period then
      gained, remainder = gained + 1, remainder - period
    end
    gained = gained + (refill - part) / period * elapsed
  end
  row[i + REMAINDER] = remainder
  give(row, i, gained)
end

local function settle(row, i, at)
  local elapsed = at - row[i + SETTLED]
  if elapsed <= 0 then
    return
  end
  row[i + SETTLED] = at
  if row[i + OWED] == 0 then
    if row[i + TOKENS] < row[i + CAPACITY] then
      earn(row, i, elapsed)
    end
    return
  end
  -- In steps that earn no more than a block: settled in one step or in many, the state is the same.
  local step = max(1, floor(BLOCK / row[i + REFILL] * row[i + PERIOD] * 0.99))
  while elapsed > 0 do
    local part = row[i + OWED] > 0 and min(step, elapsed) or elapsed
    earn(row, i, part)
    elapsed = elapsed - part
  end
end

local function reshape(row, i, part)
  local capacity, refill, period, revision = part[3], part[4], part[5], part[7]
  if revision > 0 then
    if revision < row[i + REVISION] then
      return
    end
    row[i + REVISION] = revision
  end
  local larger = max(0, capacity - row[i + CAPACITY])
  row[i + REMAINDER] = multiply_divide(row[i + REMAINDER], period, row[i + PERIOD])
  row[i + CAPACITY], row[i + REFILL], row[i + PERIOD] = capacity, refill, period
  give(row, i, larger)
end

local function fits(row, i, amount, max_wait)
  if row[i + BLOCKED] - row[i + SETTLED] > max_wait or amount > row[i + CAPACITY] then
    return false
  end
  if max_wait > 0 then
    local later = { unpack(row, i, i + WIDTH - 1) }
    settle(later, 1, later[1 + SETTLED] + max_wait)
    row, i = later, 1
  end
  return row[i + OWED] == 0 and amount <= row[i + TOKENS]
end

local function penalize(row, i, block, keep)
  if block > 0 then
    row[i + BLOCKED] = max(row[i + BLOCKED], row[i + SETTLED] + block)
  end
  local tokens = row[i + TOKENS]
  if keep < 1000 and tokens >= 0 then
    local thousandths = tokens % 1000
    row[i + TOKENS] = (tokens - thousandths) / 1000 * keep + floor(thousandths * keep / 1000)
    row[i + REMAINDER] = 0
  end
end

-- Rows

local rows, changed = {}, {}
local birth = now
if cold < 1000 then
  birth = packed_rows[#KEYS]
  if not birth then
    birth = now
    redis.call('SET', KEYS[#KEYS], birth)
  end
  birth = min(tonumber(birth), now)
end

local function load(number)
  local key = KEYS[number]
  local row = rows[key]
  if not row then
    local packed = saved[key] or packed_rows[number]
    row = packed and { cmsgpack.unpack(packed) } or { FORMAT }
    if row[1] ~= FORMAT then
      error('FORMAT ' .. tostring(row[1]) .. ' of ' .. key)
    end
    rows[key] = row
  end
  return row
end

local function find(row, part)
  local name, last = part[2], #row
  for i = 2, last, WIDTH do
    if row[i] == name then
      return i
    end
  end
  local i, capacity = last + 1, part[3]
  local tokens = capacity
  if cold < 1000 then
    tokens = floor(capacity / 1000) * cold + floor(capacity % 1000 * cold / 1000)
  end
  row[i], row[i + CAPACITY], row[i + REFILL], row[i + PERIOD] = name, capacity, part[4], part[5]
  row[i + TOKENS], row[i + SETTLED], row[i + REMAINDER] = tokens, birth, 0
  row[i + REVISION], row[i + BLOCKED], row[i + OWED] = part[7], 0, 0
  return i
end

-- Milliseconds until the bucket is like one that was never touched.
local function rest_of_life(row, i)
  local missing = row[i + CAPACITY] - row[i + TOKENS] + row[i + OWED] * BLOCK
  return max(row[i + SETTLED] + missing * row[i + PERIOD] / row[i + REFILL], row[i + BLOCKED]) - now
end

local function save(key, row)
  local life = 0
  for i = #row - WIDTH + 1, 2, -WIDTH do
    local left = rest_of_life(row, i)
    if left <= -margin then
      for _ = 1, WIDTH do
        table.remove(row, i)
      end
    elseif left > life then
      life = left
    end
  end
  local milliseconds = string.format('%.0f', min(life * 1.000001 + margin + 1, LONGEST))
  redis.call('PSETEX', key, milliseconds, cmsgpack.pack(unpack(row)))
end

-- Requests

local function describe(row, i, tokens)
  local n = length
  out[n + 1], out[n + 2], out[n + 3] = row[i + CAPACITY], row[i + REFILL], row[i + PERIOD]
  out[n + 4], out[n + 5], out[n + 6] = tokens, row[i + OWED], row[i + SETTLED]
  out[n + 7], out[n + 8], out[n + 9] = row[i + REMAINDER], row[i + BLOCKED], row[i + REVISION]
  length = n + 9
end

local found_rows, found_at = {}, {}

-- Bring the bucket of a part up to now, under the limit of the part.
local function look(part, number, changes)
  local row = load(number)
  local i = find(row, part)
  settle(row, i, now)
  if not own_clock then
    changed[KEYS[number]] = row -- the clocks of clients disagree, so that having looked has to be remembered
  end
  if row[i + CAPACITY] ~= part[3] or row[i + REFILL] ~= part[4] or row[i + PERIOD] ~= part[5] then
    if changes then
      changed[KEYS[number]] = row
    else
      row, i = { unpack(row, i, i + WIDTH - 1) }, 1
    end
    reshape(row, i, part)
  end
  return row, i
end

local function all_fit(kind, last, max_wait)
  for p = 6, last do
    if not fits(found_rows[p], found_at[p], kind[p][6], max_wait) then
      return false
    end
  end
  return true
end

local function take_all(kind, last, requests, first_key)
  local passed, max_wait = 0, kind[2]
  while passed < requests and all_fit(kind, last, max_wait) do
    for p = 6, last do
      take(found_rows[p], found_at[p], kind[p][6])
    end
    passed = passed + 1
  end
  if passed > 0 then
    for p = 6, last do
      changed[KEYS[first_key + kind[p][1]]] = found_rows[p]
    end
  end
  return passed
end

local function change(row, i, kind, amount)
  if kind[1] ~= FORCE then
    penalize(row, i, kind[3], kind[4])
  elseif amount < 0 then
    give(row, i, -amount)
  else
    take(row, i, amount)
  end
end

local function decide(kind, last, requests, first_key)
  local mode = kind[1]
  for p = 6, last do
    found_rows[p], found_at[p] = look(kind[p], first_key + kind[p][1], mode ~= PEEK)
  end
  length = length + 1
  local place = length
  if mode == TAKE and kind[2] == 0 then
    local passed = take_all(kind, last, requests, first_key)
    out[place] = passed
    for p = 6, last do
      local row, i = found_rows[p], found_at[p]
      if passed == requests then
        length = length + 1
        out[length] = row[i + TOKENS]
      else
        describe(row, i, row[i + TOKENS] + passed * kind[p][6])
      end
    end
    return
  end
  out[place] = requests
  for p = 6, last do
    describe(found_rows[p], found_at[p], found_rows[p][found_at[p] + TOKENS])
  end
  if mode == TAKE then
    out[place] = take_all(kind, last, requests, first_key)
  elseif mode ~= PEEK then
    for p = 6, last do
      change(found_rows[p], found_at[p], kind, kind[p][6])
      changed[KEYS[first_key + kind[p][1]]] = found_rows[p]
    end
  end
end

-- A kind as a list: mode, max_wait, block, keep, number of keys, part, ...; a part: key of the entry, limit name,
-- capacity, refill, period, amount, revision.
local function spelled_out(kind)
  local list = { kind[1], kind[2], kind[3], kind[4], kind[5] }
  for p = 1, kind.parts do
    local at = p * 6
    list[5 + p] =
      { kind[at], ARGV[kind.names + p], kind[at + 1], kind[at + 2], kind[at + 3], kind[at + 4], kind[at + 5] }
  end
  return list
end

while run <= last_run do
  local kind, requests = spelled_out(kinds[head[run]]), head[run + 1]
  local last = #kind
  for _ = entry, head[run + 2] do
    decide(kind, last, requests, first_key)
    first_key = first_key + kind[5]
  end
  run, entry = run + 3, 1
end
for key, row in pairs(changed) do
  save(key, row)
end
return out
