"""Tests of `streams_app.folding.shard`."""
