"""The state of live views in Redis: keys, scripts and their callers."""
