"""Integration tests of subscribers."""
