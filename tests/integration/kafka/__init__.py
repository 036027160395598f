"""Tests of `streams_app.kafka`, and of whole workers whose topics, brokers or rights change."""
