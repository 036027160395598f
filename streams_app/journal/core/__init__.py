"""Decides in which segment a journal stores each event, and encodes the events, without I/O and clocks (pure)."""
