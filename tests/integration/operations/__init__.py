"""Integration tests of the operations on state."""
