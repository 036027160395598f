"""Tests of `streams_app.folding.store`."""
