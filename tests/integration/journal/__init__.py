"""Tests of whole workers that keep journals, and of commands; each subfolder tests one room of `streams_app.journal`."""
