"""The state of journals in Redis: keys, scripts and their callers."""
