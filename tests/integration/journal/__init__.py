"""Integration tests of journals."""
