"""The delivery guarantees: at least once, deduplicated, at most once, each with its log."""
