"""Tests of `streams_app.subscribers.execution`."""
