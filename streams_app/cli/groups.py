"""``streams-app groups``: what is open, why, and emit it now; in Redis, whichever worker holds it."""

from __future__ import annotations

import asyncio

import click
import orjson
from rich.console import Console
from rich.table import Table

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.folding.definition import Fold
from streams_app.settings import Settings

PLAIN_WIDTH = 180
COLUMNS = ("GROUP", "FOLD", "SOURCE", "EVENTS", "NAMES", "LAST EVENT", "QUIET IN", "HOLD IN")
NUMBERS = ("EVENTS", "NAMES", "QUIET IN", "HOLD IN")


@click.group(name="groups")
def command() -> None:
    """Show open groups, explain one, emit them now."""


@command.command(name="list")
@with_settings
@click.option("--fold", metavar="NAME", help="Only of this fold.")
@click.option(
    "--sort",
    type=click.Choice(["quiet", "oldest", "events", "largest"]),
    default="quiet",
    show_default=True,
    help="Longest quiet, longest open, most events, or most changed names first.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows at most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def list_open(settings: Settings, fold: str | None, sort: str, limit: int, as_json: bool) -> None:
    """List open groups.

    Reads Redis, not a worker: it works while no worker runs. Times are by the clock of each partition, which follows the wall
    clock once the partition has been read to its end. Each worker shows the groups of its own partitions at /groups.
    """
    from streams_app.operating.explain import span, time_text
    from streams_app.operating.groups import groups_in_redis, open_in_redis

    if fold is not None:
        settings.fold(fold)
    rows = asyncio.run(groups_in_redis(settings, fold, limit, sort))
    if as_json:
        for row in rows:
            click.echo(orjson.dumps(row).decode())
        return
    if not rows:
        click.echo("no open groups")
        return
    table = Table(box=None, pad_edge=False)
    for title in COLUMNS:
        table.add_column(title, justify="right" if title in NUMBERS else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row["group"], row["fold"], f"{row['source']}-{row['partition']}", str(row["events"]), str(row["names"]),
            time_text(row["last_event_ms"]), span(row["quiet_in_ms"]), span(row["hold_in_ms"]),
        )  # fmt: skip
    Console(width=None if Console().is_terminal else PLAIN_WIDTH).print(table)
    if len(rows) == limit and (total := asyncio.run(open_in_redis(settings, fold))) > limit:
        click.echo(f"{limit} of {total} open groups; --limit shows more", err=True)


@command.command(name="explain")
@with_settings
@click.option("--fold", metavar="NAME", help="Of this fold; may be left out where there is only one.")
@click.argument("group")
def explain_one(settings: Settings, fold: str | None, group: str) -> None:
    """Why has GROUP not been emitted?

    GROUP as it stands in the key of its records: account_1, 17, ["a",1].
    """
    from streams_app.operating.explain import explain

    click.echo(asyncio.run(explain(settings, one_fold(settings, fold), group, SystemClock())))


@command.command(name="flush")
@with_settings
@click.option("--fold", metavar="NAME", help="Of this fold; may be left out where there is only one.")
@click.option("--all", "everything", is_flag=True, help="Every open group of the fold.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 3_600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for a worker, on top of worker.tick.",
)
@click.argument("group", required=False)
def flush_now(settings: Settings, fold: str | None, everything: bool, timeout: float, group: str | None) -> None:
    """Emit GROUP, or all groups, now; with the reason `flush`.

    The worker that holds the partition does it with its next pass and logs it. With no worker running the request stays.
    """
    from streams_app.operating.audit import audit
    from streams_app.operating.explain import counted
    from streams_app.operating.flush import flush

    if everything == (group is not None):
        raise click.UsageError("name a GROUP, or --all")
    chosen = one_fold(settings, fold)
    flushed = asyncio.run(flush(settings, chosen, group, timeout + settings.worker.tick_ms / 1000))
    click.echo(f"flushed {counted(flushed.groups, 'group')} in {counted(flushed.places, 'partition')}")
    audit(SystemClock(), "flush", fold=chosen.name, group="--all" if group is None else repr(group), groups=flushed.groups)


def one_fold(settings: Settings, name: str | None) -> Fold:
    """The fold that was named, or the only one."""
    if name is not None:
        return settings.fold(name)
    if len(settings.folds) > 1:
        raise ConfigurationError([f"name a fold with --fold: {', '.join(fold.name for fold in settings.folds)}"])
    return settings.folds[0]
