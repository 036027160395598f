"""Unit tests of the models of pages."""
