"""Tests of whole traces, from publishers to subscribers and records."""
