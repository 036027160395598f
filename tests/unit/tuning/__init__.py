"""Unit tests of `streams-app tune`."""
