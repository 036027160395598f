"""Tests of `streams_app.journal.agents`."""
