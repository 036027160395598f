"""Delivery guarantees: at least once, deduplicated and at most once, each with its log."""
