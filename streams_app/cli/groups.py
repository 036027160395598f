"""``streams-app groups``: what is open, in Redis, whichever worker holds it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from streams_app.cli.options import config_option
from streams_app.settings import Settings


@click.group(name="groups")
def command() -> None:
    """Show open groups."""


@command.command(name="list")
@config_option
@click.option("--fold", metavar="NAME", help="Only of this fold.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows at most, for each partition and in all."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def list_open(config: Path | None, fold: str | None, limit: int, as_json: bool) -> None:
    """List open groups, longest quiet first.

    Reads Redis, not a worker: it works while no worker runs. Times are by the clock of each partition, which follows the wall
    clock once the partition has been read to its end. Each worker shows the groups of its own partitions at /groups.
    """
    from streams_app.folding.overview import groups_in_redis

    settings = Settings.load(config, os.environ)
    if fold is not None:
        settings.fold(fold)
    rows = asyncio.run(groups_in_redis(settings, fold, limit))
    if as_json:
        for row in rows:
            click.echo(orjson.dumps(row).decode())
        return
    if not rows:
        click.echo("no open groups")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("GROUP", "FOLD", "SOURCE", "EVENTS", "LAST EVENT", "QUIET IN", "HOLD IN"):
        table.add_column(title, justify="right" if title in ("EVENTS", "QUIET IN", "HOLD IN") else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row["group"], row["fold"], f"{row['source']}-{row['partition']}", str(row["events"]), _time(row["last_event_ms"]),
            _span(row["quiet_in_ms"]), _span(row["hold_in_ms"]),
        )  # fmt: skip
    Console(width=None if Console().is_terminal else 160).print(table)


def _time(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at_ms >= 0 else "-"


def _span(span_ms: int) -> str:
    """Due groups say so: they leave with the next pass."""
    if span_ms <= 0:
        return "due"
    seconds = span_ms / 1000
    if seconds < 60:  # noqa: PLR2004  # a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"  # noqa: PLR2004  # an hour
