"""Integration tests of folding."""
