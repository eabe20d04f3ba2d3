-- A part of other scripts.

-- What MORE is then; false, and no hash, if everybody holds one slot.
local function add_to_more(amounts, milli)
  local more = redis.call('HINCRBY', amounts, MORE, milli)
  if more == 0 and redis.call('HLEN', amounts) == 1 then
    redis.call('UNLINK', amounts)
    return false
  end
  return more
end

-- Take the slots of the leases that have run out: how many leases, and MORE, or false. `more`: what that is now.
local function reclaim(holders, amounts, at, more)
  if more then
    local gone = redis.call('ZRANGEBYSCORE', holders, '-inf', at)
    local less, step = 0, 1000
    for first = 1, #gone, step do
      local last = math.min(first + step - 1, #gone)
      for _, milli in ipairs(redis.call('HMGET', amounts, unpack(gone, first, last))) do
        less = less + ((tonumber(milli) or SLOT) - SLOT)
      end
      redis.call('HDEL', amounts, unpack(gone, first, last))
    end
    if #gone > 0 then
      more = add_to_more(amounts, 0 - less) -- not -0, which is no integer to Redis
    end
  end
  return redis.call('ZREMRANGEBYSCORE', holders, '-inf', at), more
end
