-- Buckets, as in core/bucket.py, and what quotas do as these do; a part of settle.lua.

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

-- One form is kept to: tokens from -BLOCK on, and below zero as long as anything is owed.

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
    if row[i + REFILL] > 0 then
      row[i + REMAINDER] = 0
    end
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

-- What was used stays used: the tokens change by as much as the capacity.
local function reshape(row, i, part)
  local capacity, refill, period, revision = part[3], part[4], part[5], part[7]
  if revision > 0 then
    if revision < row[i + REVISION] then
      return
    end
    row[i + REVISION] = revision
  end
  local larger = capacity - row[i + CAPACITY]
  if refill > 0 then
    row[i + REMAINDER] = multiply_divide(row[i + REMAINDER], period, row[i + PERIOD])
  elseif refill < 0 then
    quotas.change_window(row, i, part)
  end
  row[i + CAPACITY], row[i + REFILL], row[i + PERIOD] = capacity, refill, period
  if refill == 0 then
    return
  elseif larger < 0 then
    take(row, i, -larger)
  else
    give(row, i, larger)
  end
  if refill < 0 then
    quotas.follow_tokens(row, i)
    quotas.settle(row, i, part)
  end
end

local function fits(row, i, amount, max_wait)
  if row[i + REFILL] < 0 then
    max_wait = 0 -- tokens of the next window cannot be had in this one
  end
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
    if row[i + REFILL] > 0 then
      row[i + REMAINDER] = 0
    end
  end
end

local function lower(row, i, amount)
  if row[i + OWED] == 0 and row[i + TOKENS] >= amount then
    row[i + TOKENS] = amount
    if row[i + REFILL] > 0 then
      row[i + REMAINDER] = 0
    end
  end
end
