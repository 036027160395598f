-- Whether the bytes of one text come after those of another one. Lua compares text by the locale of the server.
local function is_after(a, b)
  for i = 1, math.min(#a, #b) do
    local left, right = a:byte(i), b:byte(i)
    if left ~= right then return left > right end
  end
  return #a > #b
end
