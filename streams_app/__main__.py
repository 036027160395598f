"""Entry point of ``python -m streams_app``: runs the program ``streams-app``."""

from streams_app.cli import main

main()
