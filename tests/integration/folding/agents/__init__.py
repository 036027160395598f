"""Tests of `streams_app.folding.agents`."""
