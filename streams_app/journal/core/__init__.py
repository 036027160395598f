"""Decides where the events of a journal are stored and encodes them, without I/O and clocks (pure)."""
