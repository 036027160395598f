"""Where the current values come from: ``port`` is what a source can do, ``choice`` finds the one of the settings."""
