"""Unit tests of local mode."""
