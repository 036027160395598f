"""What fills live views in the worker."""
