"""Integration tests of read stores."""
