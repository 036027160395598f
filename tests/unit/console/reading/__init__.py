"""Unit tests of what the console reads."""
