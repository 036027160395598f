"""Tests of `streams_app.checking`."""
