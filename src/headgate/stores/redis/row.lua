-- How a row is kept; a part of other scripts. It is FORMAT and then, for each limit, WIDTH values: the bucket at i has
-- them at i + NAME, i + CAPACITY, ... USED is what was used in the hour of SETTLED. A concurrent limit has a refill of 0,
-- its ttl as PERIOD, and ENDS, when the last of its slots runs out, in the place of TOKENS. In FORMAT_BEFORE there was no
-- USED (unpacked.lua).
--
-- A quota has a refill of -1, and when its window ends as REMAINDER, 0 if none is open. PERIOD is the length of a window
-- from first use, or below 0 the number of a calendar (wire.py). A row with a quota has QUOTA_FORMAT.

local FORMAT, FORMAT_BEFORE, QUOTA_FORMAT = 2, 1, 3
local NAME, CAPACITY, REFILL, PERIOD, TOKENS, SETTLED, REMAINDER, REVISION, BLOCKED, OWED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
local USED = 10
local ENDS = 4
local WIDTH = 11

-- What is in a row was written by somebody else if it is not within these (core/stored.py).

local CORRUPT, CORRUPT_ROW, CORRUPT_HOLDERS, NEWER_FORMAT, ANOTHER_WINDOW = -1, 0, 10, 11, -2
local MOST, LATEST, WHOLE = 1000000000000000, 1000000000000000, 9007199254740992
local LONGEST_PERIOD, DEEPEST, MOST_OWED = 31622400000, 1000000000000000, 1000

-- Who holds slots is beside the row in a sorted set: lease ids by when they run out. Who holds other than one slot is in
-- a hash as well, with how many thousandths; there MORE, which is no lease id, says how many more all these are than a
-- slot each.

local SLOT = 1000
local MORE = '\0'

-- What was used in the hours before is beside the row too, in a hash for each week: limit:hour, millitokens. A row lives
-- at least as long as these, so that whoever looks for rows finds all that was used.

local HOUR, WEEK = 3600000, 604800000
