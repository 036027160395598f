"""Unit tests of what fills and keeps journals."""
