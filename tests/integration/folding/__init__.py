"""Tests of whole workers that fold; each subfolder tests one package of `streams_app.folding`."""
