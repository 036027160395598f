"""Tests of `streams_app.subscribers.declaration`."""
