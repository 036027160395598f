"""Unit tests of the docs, the examples and what is deployed."""
