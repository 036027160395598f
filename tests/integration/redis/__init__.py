"""Integration tests of Redis as it is deployed."""
