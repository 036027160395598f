"""Programs to begin with; each is run by a test."""
