"""Unit tests of the chaos runs and the broken variants."""
