"""Tests of `streams_app.subscribers.guarantees`."""
