"""From the bytes of a source record to what a fold takes from it (pure, but for what functions of the user do)."""
