-- A part of other scripts.

-- A row as a list; an empty one if there is none.
local function unpacked(packed, key)
  local row = packed and { cmsgpack.unpack(packed) } or { FORMAT }
  if row[1] == FORMAT then
    return row
  elseif row[1] ~= FORMAT_BEFORE then
    error('unknown row format ' .. tostring(row[1]) .. ' of ' .. key)
  end
  local now = { FORMAT }
  for i = 2, #row, WIDTH - 1 do
    for n = 0, WIDTH - 2 do
      now[#now + 1] = row[i + n]
    end
    now[#now + 1] = 0
  end
  return now
end
