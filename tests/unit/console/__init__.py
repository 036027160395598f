"""Unit tests of the console."""
