"""Declarations of subscribers: functions, retries and the catalogue, combined with the settings."""
