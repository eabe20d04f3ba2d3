-- A part of other scripts. The waiters for slots are beside the row too, packed as one list in the order of the queue:
-- lease id, listener, thousandths wanted, when the place expires, ... A listener is the name of a subscribed channel.

local PLACE = 4

local function queue_of(packed)
  return packed and cmsgpack.unpack(packed) or {}
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
