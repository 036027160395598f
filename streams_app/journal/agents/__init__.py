"""Fills journals in a worker: appends events, compresses closed segments and removes old ones."""
