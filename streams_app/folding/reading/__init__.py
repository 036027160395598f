"""Decodes records into the events of a fold, and rejects those that it cannot fold (pure)."""
