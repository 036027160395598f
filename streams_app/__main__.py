"""``python -m streams_app``."""

from streams_app.cli import main

main()
