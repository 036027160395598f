-- Why silence or the hold closes a group. core/closing.py says the same in Python, and a test compares them.
-- Which open groups are due now is looked up in seal.lua. The bounds on events and names close a group while it grows, in fold.lua.
-- If each event decides its quiet period, quiet_ms is the longest one, and "shorter" of a group what that of its last event lacks.
local quiet_ms, hold_ms = arg.quiet_ms, arg.hold_ms -- no quiet_ms: silence closes nothing now

-- Whether a group closes before an event with this score. An event exactly quiet_ms after the last still belongs to the group.
local function closes_before(g, score)
  return score >= g.opened + hold_ms or quiet_ms ~= nil and score > g.score - g.shorter + quiet_ms
end

-- The reason why a group closes, and when it was due; silence is counted from "silent_from".
local function closed_by(g, silent_from)
  local hold_due, quiet_due = g.opened + hold_ms, quiet_ms and silent_from - g.shorter + quiet_ms or math.huge
  if hold_due <= quiet_due then return 'max_hold', hold_due end
  return 'quiet', quiet_due
end
