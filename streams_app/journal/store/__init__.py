"""The state of journals in Redis: keys, scripts and what calls them."""
