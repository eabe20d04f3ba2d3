-- Settles a batch of requests in order, each all or nothing, all at one moment.
--
-- KEYS     one entry's keys after the other's: its rows, and for each part with slots, in order, the holders, their
--          amounts (row.lua) and the queue (queue.lua); with a cold start, the key of the store's birth last
-- ARGV     [1] now_ms or 0 for the server's clock, cold_milli or 1000, how long usage is kept or 0 if none is counted,
--          and the runs: kind, requests, entries, ...: so many entries, each so many equal requests of the kind; then
--          for each kind
--          mode, max_wait_ms, block_ms (of a take: place_ms), keep_milli, number of keys, and for each part of it
--          key of the entry, capacity, refill, period, amount, revision; then the limit name of each part.
--          All numbers are packed doubles (wire.py). If there are slots: '', the listener for those who wait or '', and of
--          each entry that has some the lease id; such an entry is one request.
-- returns  for each entry how many of its requests passed, then for each part
--          the tokens left, if all simply passed, else the bucket as it was found (`describe`).
--          Of an entry with a row that is corrupt instead: CORRUPT, which of its parts, which field (unpacked.lua)
--
-- The arithmetic is core/bucket.py's, and has to be exact although numbers here are doubles, whole up to 2^53.
-- A token count that is a large debt is kept in two numbers (`owed`), and a product is divided before it is
-- complete (`multiply_divide`). Waits are not computed here: the client replays core.decide on what it is told.
--
-- Nearly all requests are plain: a take from the one bucket of a row, with nothing special about it. Those at the head
-- of the batch are done at once, without a table or a function being made for them. The first that is not begins the
-- general part, which does all that follow.

local TAKE, FORCE, PEEK, PENALIZE, LOWER, RENEW = 0, 1, 2, 3, 4, 5
local EXACT = 2 ^ 53
local MANY = 2 ^ 52 -- to which what a bucket holds may be added, and it is exact
local BLOCK = 10 ^ 15 -- of debt: a bucket's tokens are row[i + TOKENS] - row[i + OWED] * BLOCK
local MAX_OWED = 1000
local AT_ONCE = 5000 -- as arguments; Lua has room for 8000
local LONGEST = 10 ^ 14
-- Rows live a while longer than they matter, so that the server's clock may step back so far without a trace. A clock
-- that was injected moves as it likes while the server's moves on.
local MARGIN = 60000
local INJECTED_CLOCK_MARGIN = 86400000
-- And so much longer that a busy row need not be told anew at every write when to expire, which costs more than the
-- write. No more than half the margin: rows of earlier versions live only that much longer than they matter.
local SPARE = 30000

-- include row.lua

local floor, min, max = math.floor, math.min, math.max

local head = { struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1]) }
local now, cold, kept, last_run = head[1], head[2], head[3], #ARGV[1] / 8
local own_clock, margin = now == 0, INJECTED_CLOCK_MARGIN
if own_clock then
  local time = redis.call('TIME')
  now, margin = time[1] * 1000 + floor(time[2] / 1000), MARGIN
end
local hour = now - now % HOUR -- when it began

local kinds, arg = {}, 2
while ARGV[arg] and ARGV[arg] ~= '' do
  local size = #ARGV[arg] / 8
  local kind = { struct.unpack('<' .. string.rep('d', size), ARGV[arg]) }
  kind.parts, kind.names = (size - 5) / 6, arg
  kinds[#kinds + 1] = kind
  arg = arg + 1 + kind.parts
end

local packed_rows
if #KEYS <= AT_ONCE then
  packed_rows = redis.call('MGET', unpack(KEYS))
else
  packed_rows = {}
  for first = 1, #KEYS, AT_ONCE do
    local found = redis.call('MGET', unpack(KEYS, first, min(first + AT_ONCE - 1, #KEYS)))
    for n = 1, #found do
      packed_rows[first + n - 1] = found[n]
    end
  end
end
local saved = {} -- rows that were written already, by key
local out, length = {}, 0

-- include put_away.lua

-- What is told of a plain bucket by its row; nil if it is another. If something in it is no number, comparing it is an
-- error: what is corrupt is left to the general part.
local function read_plain(packed, name, capacity, refill, period)
  local format, its_name, its_capacity, its_refill, its_period,
    tokens, settled, remainder, revision, blocked, owed, used, more = cmsgpack.unpack(packed)
  if
    its_name ~= name
    or its_capacity ~= capacity
    or its_refill ~= refill
    or its_period ~= period
    or blocked ~= 0
    or owed ~= 0
    or more
    or format ~= FORMAT
    or not (tokens <= capacity and tokens >= -DEEPEST and remainder >= 0 and remainder < period)
    or not (settled >= 0 and settled <= LATEST and used <= WHOLE and used >= -WHOLE)
    or not (revision >= 0 and revision <= WHOLE)
    or tokens % 1 + settled % 1 + remainder % 1 + revision % 1 + used % 1 ~= 0
  then
    return nil
  end
  return tokens, settled, remainder, revision, used
end

-- Done plainly, or false.
local function done_plainly(kind, requests, number)
  local name, capacity, refill, period, amount = ARGV[kind.names + 1], kind[7], kind[8], kind[9], kind[10]
  local key = KEYS[number]
  local packed = saved[key] or packed_rows[number]
  local tokens, settled, remainder, revision, used, used_at = capacity, now, 0, kind[11], 0, now
  local lasts -- to when the row was certain to live when it was written
  if packed then
    local sound
    sound, tokens, settled, remainder, revision, used = pcall(read_plain, packed, name, capacity, refill, period)
    if not sound or not tokens then
      return false
    end
    used_at, lasts = settled, max(kept, (capacity - tokens) * period / refill) + settled
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
  elseif redis.call('EXISTS', key) == 1 then
    return false
  end
  local passed = tokens < amount and 0 or min(requests, floor(tokens / amount))
  local left = tokens - passed * amount
  if passed > 0 or not own_clock then
    if used ~= 0 and (used_at < hour or used >= MANY) then
      put_away(key, name, used_at, used)
      used = 0
    end
    if kept > 0 then
      used = used + passed * amount
    end
    local row = cmsgpack.pack(FORMAT, name, capacity, refill, period, left, settled, remainder, revision, 0, 0, used)
    local needed = max(kept, (capacity - left) * period / refill) + settled
    if own_clock and lasts and floor(needed / SPARE) <= floor(lasts / SPARE) then
      redis.call('SET', key, row, 'KEEPTTL')
    else
      local life = (needed - now) * 1.000001 + margin + SPARE + 1
      redis.call('PSETEX', key, string.format('%.0f', min(life, LONGEST)), row)
    end
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

local run, entry, first_key = 4, 1, 1
while run <= last_run do
  local kind, requests, entries = kinds[head[run]], head[run + 1], head[run + 2]
  if kind[1] ~= TAKE or kind[2] ~= 0 or kind.parts ~= 1 or kind[8] == 0 or kind[10] == 0 or cold < 1000 then
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

-- include buckets.lua

-- include rows.lua

-- What slots can do, if there are any in the batch. Others know them only by what `look` finds: each local that a function
-- uses is paid for at every call.
local slots
if ARGV[arg] then
-- include slots.lua
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
local function look(part, first_key, changes, place)
  local key, reshaped = KEYS[first_key + part[1]], false
  local stored = load(first_key + part[1])
  local row, i, begins = find(key, stored, part, changes)
  if not part[8] then
    if row[i + SETTLED] < hour then
      close(row, i)
    end
    settle(row, i, now)
  elseif now > row[i + SETTLED] then
    row[i + SETTLED] = now
  end
  if not own_clock then
    changed[key] = stored -- the clocks of clients disagree, so that having looked has to be remembered
  end
  if row[i + CAPACITY] ~= part[3] or row[i + REFILL] ~= part[4] or row[i + PERIOD] ~= part[5] then
    if changes then
      changed[key] = row
    else
      row, i = { unpack(row, i, i + WIDTH - 1) }, 1
    end
    reshape(row, i, part)
    reshaped = part[8]
  end
  if part[8] then
    part[9] = slots.open(row, i, first_key + part[8], part, begins, row == stored, place)
    part[9].freed = part[9].freed or reshaped
  end
  return row, i
end

local function all_fit(kind, last, max_wait)
  for p = 6, last do
    local it, amount = kind[p][9], kind[p][6]
    if it then
      if not it:fits(amount) then
        return false
      end
    elseif not fits(found_rows[p], found_at[p], amount, max_wait) then
      return false
    end
  end
  return true
end

-- A take that lacks nothing but slots keeps a place in their queues. Any other end of it gives the place up.
local function queue_up(kind, last, passed)
  local waits = passed == 0 and kind[3] > 0
  for p = 6, last do
    local it, amount = kind[p][9], kind[p][6]
    if it then
      waits = waits and amount <= found_rows[p][found_at[p] + CAPACITY]
    else
      waits = waits and fits(found_rows[p], found_at[p], amount, kind[2])
    end
  end
  for p = 6, last do
    local it, amount = kind[p][9], kind[p][6]
    if it and waits and amount > 0 then
      it:join(amount)
    elseif it then
      it:leave(passed == 0)
    end
  end
end

local function tell(kind, last)
  for p = 6, last do
    if kind[p][9] then
      kind[p][9]:tell()
    end
  end
end

local function take_all(kind, last, requests, first_key)
  local passed, max_wait = 0, kind[2]
  while passed < requests and all_fit(kind, last, max_wait) do
    for p = 6, last do
      local it, amount = kind[p][9], kind[p][6]
      if it then
        it:hold(it.own + amount)
      else
        take(found_rows[p], found_at[p], amount)
        count(found_rows[p], found_at[p], amount)
      end
    end
    passed = passed + 1
  end
  if passed > 0 then
    for p = 6, last do
      changed[KEYS[first_key + kind[p][1]]] = found_rows[p]
    end
  end
  if kind.slots then
    queue_up(kind, last, passed)
  end
  return passed
end

local function change(row, i, it, kind, amount)
  local mode = kind[1]
  if mode == PENALIZE then
    penalize(row, i, kind[3], it and 1000 or kind[4])
  elseif it then
    it:change(mode, amount)
  elseif mode == LOWER then
    if row[i + OWED] == 0 and row[i + TOKENS] >= amount then
      row[i + TOKENS], row[i + REMAINDER] = amount, 0
    end
  elseif mode == FORCE then
    count(row, i, amount)
    if amount < 0 then
      give(row, i, -amount)
    else
      take(row, i, amount)
    end
  end
end

-- All that a request is about is read before any of it is changed: what is corrupt concerns that request alone.
local function is_corrupt(kind, last, first_key)
  for p = 6, last do
    local part = kind[p]
    local row, flaw = load(first_key + part[1])
    for i = 2, row and part[8] and #row or 0, WIDTH do
      if row[i] == part[2] and row[i + REFILL] == 0 then
        flaw = slots.flaw(part, first_key + part[8])
      end
    end
    if flaw then
      out[length + 1], out[length + 2], out[length + 3] = CORRUPT, p - 5, flaw
      length = length + 3
      return true
    end
  end
  return false
end

local function decide(kind, last, requests, first_key)
  local mode = kind[1]
  if is_corrupt(kind, last, first_key) then
    return
  end
  local place = mode == TAKE and kind[3] or 0
  for p = 6, last do
    found_rows[p], found_at[p] = look(kind[p], first_key, mode ~= PEEK, place)
  end
  length = length + 1
  local place = length
  if mode == TAKE and kind[2] == 0 then
    local passed = take_all(kind, last, requests, first_key)
    out[place] = passed
    for p = 6, last do
      local row, i, it = found_rows[p], found_at[p], kind[p][9]
      if passed == requests then
        length = length + 1
        out[length] = it and it:free() or row[i + TOKENS]
      elseif it then
        it:describe(kind[p][6])
      else
        describe(row, i, row[i + TOKENS] + passed * kind[p][6])
      end
    end
    return
  end
  out[place] = requests
  for p = 6, last do
    local row, i, it = found_rows[p], found_at[p], kind[p][9]
    if it then
      it:describe(kind[p][6])
    else
      describe(row, i, row[i + TOKENS])
    end
  end
  if mode == TAKE then
    out[place] = take_all(kind, last, requests, first_key)
  elseif mode ~= PEEK then
    for p = 6, last do
      change(found_rows[p], found_at[p], kind[p][9], kind, kind[p][6])
      changed[KEYS[first_key + kind[p][1]]] = found_rows[p]
    end
  end
end

-- A kind as a list: mode, max_wait, block, keep, number of keys, part, ...; a part: key of the entry, limit name,
-- capacity, refill, period, amount, revision, and of slots the key of the holders, the slots when they are looked at, and
-- what of them was read before (`slots.flaw`). And as `slots`, whether there are any.
local function spelled_out(kind)
  local list = { kind[1], kind[2], kind[3], kind[4], kind[5] }
  local holders = kind[5] -- their keys come last
  for p = 1, kind.parts do
    holders = kind[p * 6 + 2] == 0 and holders - 3 or holders
  end
  list.slots = holders < kind[5]
  for p = 1, kind.parts do
    local at = p * 6
    list[5 + p] =
      { kind[at], ARGV[kind.names + p], kind[at + 1], kind[at + 2], kind[at + 3], kind[at + 4], kind[at + 5] }
    if kind[at + 2] == 0 then
      list[5 + p][8], holders = holders, holders + 3
    end
  end
  return list
end

while run <= last_run do
  local kind = spelled_out(kinds[head[run]])
  local requests, last = head[run + 1], #kind
  for _ = entry, head[run + 2] do
    if kind.slots then
      slots.lease = slots.lease + 1
    end
    decide(kind, last, requests, first_key)
    if kind.slots and kind[1] ~= PEEK then
      tell(kind, last)
    end
    first_key = first_key + kind[5]
  end
  run, entry = run + 3, 1
end
for key, row in pairs(changed) do
  save(key, row)
end
if slots then
  slots.save_queues()
end
return out
