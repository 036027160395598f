"""Tests of `streams_app.live.store`."""
