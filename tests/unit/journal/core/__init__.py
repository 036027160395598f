"""Tests of `streams_app.journal.core`."""
