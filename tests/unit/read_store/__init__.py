"""Unit tests of read stores."""
