"""Unit tests of the operations on state."""
