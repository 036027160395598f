"""Tests of `streams_app.health`: the HTTP server, its pages, and the metrics of a worker that is not ready."""
