"""Tests of `streams_app.read_store.sync`."""
