"""Unit tests of `streams-app check`."""
