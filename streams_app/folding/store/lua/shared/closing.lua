-- Decides whether quiet period or max hold closes a group. core/closing.py has the same rule in Python; a test compares the two.
-- seal.lua finds the open groups that are due now. The bounds on events and names close a group in fold.lua.
-- If each event decides its quiet period, quiet_ms is the longest one, and "shorter" of a group is the difference between it and the
-- quiet period of its last event.
local quiet_ms, hold_ms = arg.quiet_ms, arg.hold_ms -- without quiet_ms, silence closes no group

-- Whether a group closes before an event with this score. An event exactly quiet_ms after the last one still belongs to the group.
local function closes_before(g, score)
  return score >= g.opened + hold_ms or quiet_ms ~= nil and score > g.score - g.shorter + quiet_ms
end

-- Returns the reason why a group closes, and the time at which it was due; silence is counted from "silent_from".
local function closed_by(g, silent_from)
  local hold_due, quiet_due = g.opened + hold_ms, quiet_ms and silent_from - g.shorter + quiet_ms or math.huge
  if hold_due <= quiet_due then return 'max_hold', hold_due end
  return 'quiet', quiet_due
end
