"""Tests of `streams_app.schemas`, and of whole workers that use a schema registry."""
