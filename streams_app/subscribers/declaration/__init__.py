"""Declarations of subscribers: functions, retries, the catalogue, and what the settings override."""
