"""Unit tests of the delivery protocol."""
