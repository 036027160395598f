"""Rules and encoding of a journal, without I/O and clocks (pure)."""
