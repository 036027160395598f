"""``streams-app worker``: one Faust worker, until SIGTERM."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from streams_app.cli import tell
from streams_app.cli.options import app_option, config_option, named
from streams_app.errors import StreamsAppError
from streams_app.settings import Settings


@click.command(name="worker")
@config_option
@app_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="debug adds what Faust and aiokafka say.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object a line: time, level, logger, message, and each key=value of it as a field.",
)
@click.option("--only", metavar="NAME", help="Run one of [read_stores.NAME] and nothing else; workers without it share it.")
def command(config: Path | None, app: str | None, log_level: str, log_format: str, only: str | None) -> None:
    """Run one worker: fold the sources, emit the records, sync the read store.

    Start as many as there are cores; they share the partitions. SIGTERM ends it within 20 seconds. Another worker (or this one,
    started again) goes on exactly where it was, also after kill -9.
    """
    declared = named(config, app)
    settings = declared if isinstance(declared, Settings) else declared.settings
    store = None if only is None else settings.read_store(only)
    # Faust takes a second to import, and `--help` should not.
    from streams_app.leaving import leave
    from streams_app.logs import set_up_logging

    set_up_logging(log_level, log_format)
    try:
        if store is not None:
            from streams_app.serving_store import serve_store

            serve_store(settings, store)
        else:
            from streams_app.serving import serve

            serve(declared)
    except StreamsAppError as error:
        if log_format == "json":
            logging.getLogger(__name__).critical("%s", error)
        else:
            tell(error)
        leave(error.exit_code)
    leave(0)
