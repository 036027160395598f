"""Unit tests of journals."""
