"""Tests of `streams_app.subscribers.running`."""
