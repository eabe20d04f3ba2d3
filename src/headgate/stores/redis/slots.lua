-- Slots, as in core/slots.py; a part of settle.lua. They are changed where they are, at once: by then it is decided.

-- include reclaim.lua

slots = { lease = arg } -- where in ARGV the lease id is
slots.__index = slots

-- The slots at row[i], reclaimed, for the lease, which holds them for `ttl`. `key`: number of the key of the holders. If they begin only now, nobody
-- holds any: what may be there was left by a row that was deleted, or by an earlier limit of this name.
function slots.open(row, i, key, ttl, begin, stored)
  local holders, amounts, lease = KEYS[key], KEYS[key + 1], ARGV[slots.lease]
  local it = { row = row, i = i, holders = holders, amounts = amounts, lease = lease, ttl = ttl }
  it.own, it.more, it.held = 0, false, 0
  setmetatable(it, slots)
  if begin then
    if stored then
      redis.call('UNLINK', holders, amounts)
    end
    return it
  end
  local _, more = reclaim(holders, amounts, row[i + SETTLED])
  local count = redis.call('ZCARD', holders)
  if count > 0 then
    it.more, it.held = more, count * SLOT + (more or 0)
    if redis.call('ZSCORE', holders, lease) then
      it.own = more and tonumber(redis.call('HGET', amounts, lease)) or SLOT
    end
  elseif more then
    redis.call('UNLINK', amounts)
  end
  return it
end

function slots:free()
  return self.row[self.i + CAPACITY] - self.held
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
  self.held, self.own = self.held + milli - own, milli
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
  if not self.more then
    local place = math.ceil(missing / SLOT) - 1
    return tonumber(redis.call('ZRANGE', self.holders, place, place, 'WITHSCORES')[2])
  end
  local first, step, at = 0, 100, 0
  repeat
    local found = redis.call('ZRANGE', self.holders, first, first + step - 1, 'WITHSCORES')
    for n = 1, #found, 2 do
      missing, at = missing - tonumber(redis.call('HGET', self.amounts, found[n]) or SLOT), tonumber(found[n + 1])
      if missing <= 0 then
        return at
      end
    end
    first = first + step
  until #found == 0
  return at
end

function slots:change(mode, amount)
  if self.own > 0 and mode == RENEW then
    self:hold(self.own)
  elseif self.own > 0 and mode == FORCE and amount < 0 then
    self:hold(self.own + amount)
  end
end

-- In the places of a bucket's tokens, debt and remainder: what is held, what of it by the lease, and when the amount fits.
function slots:describe(amount)
  local n, row, i = length, self.row, self.i
  out[n + 1], out[n + 2], out[n + 3] = row[i + CAPACITY], 0, row[i + PERIOD]
  out[n + 4], out[n + 5], out[n + 6] = self.held, self.own, row[i + SETTLED]
  out[n + 7], out[n + 8], out[n + 9] = self:fits_at(amount), row[i + BLOCKED], row[i + REVISION]
  length = n + 9
end
