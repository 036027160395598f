"""Tests of `streams_app.kafka.patches`."""
