"""Tests of `streams_app.live.core`."""
