"""What the quiet period should be, by evidence: events are replayed with a virtual clock for many candidates."""
