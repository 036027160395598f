"""Tests of `streams_app.subscribers.state`."""
