"""Unit tests of events and publishing."""
