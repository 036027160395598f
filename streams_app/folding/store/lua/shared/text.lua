-- Whether one text is above another by its bytes. The operators of Lua compare by the locale of the server.
local function is_after(a, b)
  for i = 1, math.min(#a, #b) do
    local left, right = a:byte(i), b:byte(i)
    if left ~= right then return left > right end
  end
  return #a > #b
end
