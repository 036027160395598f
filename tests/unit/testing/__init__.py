"""Unit tests of the test kit."""
