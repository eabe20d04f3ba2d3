-- A part of other scripts.

-- What was used of a limit in the hour of `at`, beside its row, for `kept` milliseconds. More than the server can count
-- is no reason to fail.
local function put_away(key, name, at, used)
  if kept > 0 then
    local place = key .. '##' .. floor(at / WEEK)
    redis.pcall('HINCRBY', place, name .. ':' .. floor(at / HOUR), string.format('%.0f', used))
    redis.pcall('PEXPIRE', place, kept)
  end
end
