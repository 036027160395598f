"""Unit tests of the access to Redis."""
