-- Slots, as in core/slots.py; a part of settle.lua. They are changed where they are, at once: by then it is decided.

-- include reclaim.lua
-- include queue.lua

slots = { lease = arg + 1 } -- where in ARGV the lease id is, after the listener
slots.__index = slots

local listener = ARGV[slots.lease]
local queues, queues_changed = {}, {}

-- The slots at row[i], reclaimed, for the lease, which holds them for `ttl` and keeps its place for `place`. `key`: number
-- of the key of the holders. If they begin only now, nobody holds any or waits: what may be there was left by a row that
-- was deleted, or by an earlier limit of this name.
function slots.open(row, i, key, part, begin, stored, place)
  local holders, amounts, lease = KEYS[key], KEYS[key + 1], ARGV[slots.lease]
  local it = { row = row, i = i, holders = holders, amounts = amounts, lease = lease, ttl = part[5], place = place }
  it.own, it.more, it.held, it.ahead, it.queue, it.queue_key = 0, false, 0, 0, {}, KEYS[key + 2]
  setmetatable(it, slots)
  if begin then
    if stored then
      redis.call('UNLINK', holders, amounts, it.queue_key)
      queues[it.queue_key] = it.queue
    end
    return it
  end
  it.queue = queues[it.queue_key] or queue_of(packed_rows[key + 2])
  queues[it.queue_key] = it.queue
  if it.queue[1] then
    it:line_up()
  end
  local score, odd = part[10], part[11]
  local gone, more = reclaim(holders, amounts, row[i + SETTLED], tonumber(odd[1]) or false)
  it.freed = it.freed or gone > 0
  local count = redis.call('ZCARD', holders)
  if count > 0 then
    it.more, it.held = more, count * SLOT + (more or 0)
    if score and tonumber(score) > row[i + SETTLED] then
      it.own = tonumber(odd[2]) or SLOT
    end
  elseif more then
    redis.call('UNLINK', amounts)
  end
  return it
end

-- Forget places that have expired, and see who is ahead.
function slots:line_up()
  local queue, now, n = self.queue, self.row[self.i + SETTLED], 1
  while queue[n] do
    if queue[n + 3] <= now then
      drop(queue, n)
      self.freed, self.dropped = true, true
    else
      if queue[n] == self.lease then
        self.at = n
      elseif not self.at and self.place >= 0 then
        self.ahead, self.last_ahead = self.ahead + queue[n + 2], n
      end
      n = n + PLACE
    end
  end
end

-- What is wrong with the holders of a limit, or nil. `key` as above. What was read of them is noted for `open`.
function slots.flaw(part, key)
  local score = redis.pcall('ZSCORE', KEYS[key], ARGV[slots.lease])
  local odd = redis.pcall('HMGET', KEYS[key + 1], MORE, ARGV[slots.lease])
  part[10], part[11] = score, odd
  if (type(score) == 'table' and score.err) or odd.err then
    return CORRUPT_HOLDERS
  end
  for n = 1, 2 do
    if odd[n] and not string.find(odd[n], n == 1 and '^%-?%d+$' or '^[1-9]%d*$') then
      return CORRUPT_HOLDERS
    end
  end
end

-- Keep a place in the queue: the one it has, else the last.
function slots:join(amount)
  local queue = self.queue
  local n = self.at or #queue + 1
  queue[n], queue[n + 1], queue[n + 2] = self.lease, listener, amount
  queue[n + 3] = self.row[self.i + SETTLED] + self.place
  self.at = n
  queues_changed[self.queue_key] = queue
end

-- `freed`: it leaves without what it wanted.
function slots:leave(freed)
  if self.at then
    drop(self.queue, self.at)
    self.at, self.freed = nil, self.freed or freed
    queues_changed[self.queue_key] = self.queue
  end
end

-- Tell those who wait, if there may be something for them.
function slots:tell()
  local row, i = self.row, self.i
  if self.freed and self.queue[1] and row[i + BLOCKED] <= row[i + SETTLED] then
    self.dropped = wake(self.queue, row[i + CAPACITY] - self.held, row[i + CAPACITY]) or self.dropped
  end
  if self.dropped then
    queues_changed[self.queue_key] = self.queue
  end
end

function slots.save_queues()
  for key, queue in pairs(queues_changed) do
    local last = 0
    for n = 4, #queue, PLACE do
      last = max(last, queue[n])
    end
    if last > 0 then
      redis.call('PSETEX', key, string.format('%.0f', min(last - now + margin + 1, LONGEST)), cmsgpack.pack(queue))
    else
      redis.call('UNLINK', key)
    end
  end
end

-- For this lease: what others hold, and what those ahead of it want, is not.
function slots:free()
  return self.row[self.i + CAPACITY] - self.held - self.ahead
end

function slots:fits(amount)
  local row, i = self.row, self.i
  return row[i + BLOCKED] <= row[i + SETTLED] and (amount == 0 or amount <= self:free())
end

-- Let the lease hold so much from now on.
function slots:hold(milli)
  local row, i, holders, amounts, lease, own = self.row, self.i, self.holders, self.amounts, self.lease, self.own
  milli = max(milli, 0)
  if milli > 0 then
    redis.call('ZADD', holders, row[i + SETTLED] + self.ttl, lease)
  else
    redis.call('ZREM', holders, lease)
  end
  local odd, was_odd = milli > 0 and milli - SLOT or 0, own > 0 and own - SLOT or 0
  if odd ~= was_odd then
    if odd == 0 then
      redis.call('HDEL', amounts, lease)
    else
      redis.call('HSET', amounts, lease, milli)
    end
    self.more = add_to_more(amounts, odd - was_odd)
  end
  self.held, self.own, self.freed = self.held + milli - own, milli, self.freed or milli < own
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  row[i + ENDS] = tonumber(last or 0)
  if last then
    local milliseconds = string.format('%.0f', min((row[i + ENDS] - now) * 1.000001 + margin + 1, LONGEST))
    redis.call('PEXPIRE', holders, milliseconds)
    if self.more then
      redis.call('PEXPIRE', amounts, milliseconds)
    end
  elseif self.more then
    redis.call('UNLINK', amounts)
  end
end

-- When so many have run out that the amount fits; 0 if it does now, or never will.
function slots:fits_at(amount)
  local missing = amount - self:free()
  if amount == 0 or amount > self.row[self.i + CAPACITY] or missing <= 0 then
    return 0
  end
  if not self.more and self.ahead == 0 then
    local place = math.ceil(missing / SLOT) - 1
    return tonumber(redis.call('ZRANGE', self.holders, place, place, 'WITHSCORES')[2])
  end
  local places, next_place = self:ends_ahead(), 1
  local first, step, at = 0, 100, 0
  repeat
    local found = redis.call('ZRANGE', self.holders, first, first + step - 1, 'WITHSCORES')
    for n = 1, #found + 1, 2 do
      local ends = tonumber(found[n + 1]) or #found == 0 and math.huge or 0
      while missing > 0 and places[next_place] and places[next_place][1] <= ends do
        at, missing, next_place = places[next_place][1], missing - places[next_place][2], next_place + 1
      end
      if missing > 0 and found[n] then
        local milli = self.more and redis.call('HGET', self.amounts, found[n])
        missing, at = missing - (tonumber(milli) or SLOT), ends
      end
      if missing <= 0 then
        return at
      end
    end
    first = first + step
  until #found == 0
  return at
end

-- When the places ahead expire, and what is wanted there; the first to expire first.
function slots:ends_ahead()
  local ends, queue = {}, self.queue
  for n = 1, self.last_ahead or 0, PLACE do
    ends[#ends + 1] = { queue[n + 3], queue[n + 2] }
  end
  table.sort(ends, function(one, other)
    return one[1] < other[1]
  end)
  return ends
end

function slots:change(mode, amount)
  if self.own > 0 and mode == RENEW then
    self:hold(self.own)
  elseif self.own > 0 and mode == FORCE and amount < 0 then
    self:hold(self.own + amount)
  end
  if mode == FORCE then
    self:leave(true)
  end
end

-- In the places of a bucket's tokens, debt and remainder: what is held or wanted ahead, what of it the lease holds, and
-- when the amount fits.
function slots:describe(amount)
  local n, row, i = length, self.row, self.i
  out[n + 1], out[n + 2], out[n + 3] = row[i + CAPACITY], 0, row[i + PERIOD]
  out[n + 4], out[n + 5], out[n + 6] = self.held + self.ahead, self.own, row[i + SETTLED]
  out[n + 7], out[n + 8], out[n + 9] = self:fits_at(amount), row[i + BLOCKED], row[i + REVISION]
  length = n + 9
end
