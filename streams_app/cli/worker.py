"""``streams-app worker``: runs one worker until SIGTERM."""

from __future__ import annotations

from pathlib import Path

import click

from streams_app.cli import run_server
from streams_app.cli.options import app_option, config_option, named
from streams_app.gc_tuning import paused_during_imports
from streams_app.settings import Settings


@click.command(name="worker", short_help="Run one worker: fold, emit, sync, call subscribers.")
@config_option
@app_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="debug adds the messages of Faust and aiokafka.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object a line: time, level, logger, message, and each key=value of it as a field.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Run this read store, subscriber, live view or journal, and no fold; may be repeated. Workers without it share them.",
)
def command(config: Path | None, app: str | None, log_level: str, log_format: str, only: tuple[str, ...]) -> None:  # fmt: skip
    """Run one worker: fold the sources, emit the records, sync the read stores, call the subscribers, fill views and journals.

    Start one per core; they share the partitions. SIGTERM ends a worker within 20 seconds, so that running functions of subscribers
    can complete. If worker.grace is longer than 15s, it takes longer by the difference. Another worker, or the same one after a
    restart, continues exactly where it stopped, even after kill -9.

    \b
    streams-app worker --only dashboard              one of [read_stores.NAME]
    streams-app worker --only ship --only recompute  two subscribers
    """  # noqa: D301  # \b is for click: keep these lines as they are
    with paused_during_imports():
        declared = named(config, app)
    settings = declared if isinstance(declared, Settings) else declared.settings
    # Faust takes a second to import, and `--help` should not.
    from streams_app.logs import set_up_logging

    def serve() -> None:
        with paused_during_imports():
            if settings.events.catalogue is not None:
                from streams_app.subscribers.declaration.loading import catalogue_of
                from streams_app.subscribers.declaration.subscription import subscriptions_of

                # Report faults of the catalogue before connecting to any server: waiting cannot mend them.
                subscriptions_of(catalogue_of(settings), settings)
            from streams_app.worker import runtime
        runtime.serve(declared, only)

    set_up_logging(log_level, log_format)
    run_server(serve, log_format)
