"""Tests of `streams_app.folding.core`."""
