"""Tests of `streams_app.folding.reading`."""
