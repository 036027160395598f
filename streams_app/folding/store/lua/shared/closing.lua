-- Why silence or the hold ends a group: the only place in Lua. core/closing.py says the same in Python, and a test compares them.
-- The bounds on events and names end a group while it grows, in fold.lua.
local quiet_ms, hold_ms = arg.quiet_ms, arg.hold_ms -- no quiet_ms: silence ends nothing now

-- Whether a group has ended before an event with this score. One exactly quiet_ms after the last still belongs to the group.
local function is_over(g, score)
  return score >= g.opened + hold_ms or quiet_ms ~= nil and score > g.score + quiet_ms
end

-- The reason of a group that has ended, and when it was due; silence is counted from "silent_from".
local function ended_by(g, silent_from)
  local hold_due, quiet_due = g.opened + hold_ms, quiet_ms and silent_from + quiet_ms or math.huge
  if hold_due <= quiet_due then return 'max_hold', hold_due end
  return 'quiet', quiet_due
end
