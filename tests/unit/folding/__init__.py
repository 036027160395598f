"""Unit tests of folding."""
