"""Tests of `streams_app.cli`."""
