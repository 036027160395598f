"""Integration tests of events and publishing."""
