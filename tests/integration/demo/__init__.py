"""Integration tests of the demo."""
