"""Tests of `streams_app.live.hub`."""
