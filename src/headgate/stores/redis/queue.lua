-- A part of other scripts. The waiters for slots are beside the row too, packed as one list in the order of the queue:
-- lease id, listener, thousandths wanted, when the place expires, ... A listener is the name of a subscribed channel.

local PLACE = 4

-- Waiters ask again by themselves, and so a queue that cannot be read is an empty one.
local function queue_of(packed)
  local sound, queue = pcall(cmsgpack.unpack, packed or '')
  if not sound or type(queue) ~= 'table' or #queue % PLACE ~= 0 then
    return {}
  end
  for n = 1, #queue, PLACE do
    local wanted, ends = queue[n + 2], queue[n + 3]
    if type(queue[n]) ~= 'string' or type(queue[n + 1]) ~= 'string' or type(wanted) ~= 'number' or type(ends) ~= 'number' then
      return {}
    end
  end
  return queue
end

local function drop(queue, n)
  for _ = 1, PLACE do
    table.remove(queue, n)
  end
end

-- Tells the waiters at the head of the queue whose slots are free to ask again. Returns whether any place was dropped: a
-- channel without subscribers means that its process is dead. If the server forbids to publish, waiters poll.
local function wake(queue, free, capacity)
  local n, dropped = 1, false
  while queue[n] and (queue[n + 2] <= free or queue[n + 2] > capacity) do
    if queue[n + 1] ~= '' and redis.pcall('PUBLISH', 'headgate:' .. queue[n + 1], queue[n]) == 0 then
      drop(queue, n)
      dropped = true
    else
      free = queue[n + 2] <= capacity and free - queue[n + 2] or free
      n = n + PLACE
    end
  end
  return dropped
end
