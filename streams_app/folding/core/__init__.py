"""What is decided about groups, without touching the world (pure)."""
