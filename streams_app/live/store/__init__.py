"""The state of live views in Redis: its keys, the scripts, and the classes that call them."""
