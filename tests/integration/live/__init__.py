"""Tests of whole workers that keep live views, and of commands; each subfolder tests one package of `streams_app.live`."""
