"""The state of live views in Redis: keys, scripts and what calls them."""
