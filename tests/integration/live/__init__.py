"""Integration tests of live views."""
