"""Integration tests of the embedded servers."""
