"""Unit tests of subscribers."""
