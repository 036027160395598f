"""Tests of whole workers that keep journals, and of commands; each subfolder tests one package of `streams_app.journal`."""
