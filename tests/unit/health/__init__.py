"""Unit tests of metrics, status and reported outages."""
