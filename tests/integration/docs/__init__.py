"""Tests of the docs, the examples, the distributions, and what is deployed: alerts and the dashboard."""
