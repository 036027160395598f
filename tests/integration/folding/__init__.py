"""Tests of whole workers that fold; each subfolder tests one room of `streams_app.folding`."""
