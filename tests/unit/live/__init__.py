"""Unit tests of live views."""
