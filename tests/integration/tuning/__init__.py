"""Integration tests of `streams-app tune`."""
