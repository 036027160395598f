"""``streams-app groups``: lists open groups, explains a group, or requests through Redis that groups are emitted or dropped."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.cli.tables import Column
    from streams_app.operations.listed_group import ListedGroup


@click.group(name="groups")
def command() -> None:
    """Show open groups, explain one, emit or drop them now."""


@command.command(name="list")
@with_settings
@click.option("--fold", metavar="NAME", help="Only groups of this fold.")
@click.option(
    "--sort",
    type=click.Choice(["quiet", "oldest", "events", "largest"]),
    default="quiet",
    show_default=True,
    help="Sort by longest quiet, longest open, most events, or most changed names.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of rows.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def list_open(settings: Settings, fold: str | None, sort: str, limit: int, as_json: bool) -> None:
    """List open groups.

    Reads Redis, so no worker has to run. Times are by the clock of each partition, which follows the wall clock once the partition
    has been read to its end. Each worker shows the groups of its own partitions at /groups.
    """
    from streams_app.cli.tables import print_fitted
    from streams_app.formatting import json_line
    from streams_app.operations.groups import groups_in_redis, open_in_redis

    if fold is not None:
        settings.fold(fold)
    rows = asyncio.run(groups_in_redis(settings, fold, limit, sort))
    if as_json:
        for row in rows:
            click.echo(json_line(msgspec.structs.asdict(row)))
        return
    if not rows:
        click.echo("no open groups")
        return
    print_fitted(columns_of(rows))
    if len(rows) == limit and (total := asyncio.run(open_in_redis(settings, fold))) > limit:
        click.echo(f"{limit} of {total} open groups; --limit shows more", err=True)


def columns_of(rows: Sequence[ListedGroup]) -> list[Column]:
    """Return the columns of the table that ``groups list`` prints, from the result of :func:`.groups_in_redis`."""
    from streams_app.cli.tables import Column
    from streams_app.formatting import shown_key, span, time_text

    folds = [row.fold for row in rows]
    return [
        Column("GROUP", [shown_key(row.key) for row in rows], least=24),
        Column("FOLD", folds, least=10, rank=1, is_known=len(set(folds)) == 1),
        Column("SOURCE", [f"{row.source}-{row.partition}" for row in rows], least=10, rank=3),
        Column("EVENTS", [str(row.events) for row in rows], rank=2),
        Column("NAMES", [str(row.names) for row in rows], rank=4),
        Column("LAST EVENT", [time_text(row.last_event_ms) for row in rows], rank=5),
        Column("QUIET IN", [span(row.quiet_in_ms) for row in rows]),
        Column("HOLD IN", [span(row.hold_in_ms) for row in rows], rank=2),
    ]


@command.command(name="explain")
@with_settings
@click.option("--fold", metavar="NAME", help="Name of the fold; optional if there is only one.")
@click.option("--json", "as_json", is_flag=True, help="Everything that is known, as one JSON object.")
@click.argument("group")
def explain_one(settings: Settings, fold: str | None, as_json: bool, group: str) -> None:
    """Explain why GROUP has not been emitted.

    Write GROUP as `groups list` shows it: account_1, 17, ["a",1]. With quotes, '"17"', it is a text. Without quotes, 17 stands for
    the number and the text.

    The share of groups that reopen comes from the worker on this machine, if one runs, and everything else from Redis and Kafka.
    """
    from streams_app.cli.sentences import lay_out
    from streams_app.formatting import json_line
    from streams_app.operations.explain_group import explain
    from streams_app.operations.group_text import group_sentences

    explanation = asyncio.run(explain(settings, one_fold(settings, fold), group, SystemClock()))
    if as_json:
        click.echo(json_line(msgspec.to_builtins(explanation)))
        return
    columns = shutil.get_terminal_size().columns
    click.echo("\n\n".join(lay_out(verdict, facts, columns) for verdict, facts in group_sentences(explanation)))


@command.command(name="flush")
@with_settings
@click.option("--fold", metavar="NAME", help="Name of the fold; optional if there is only one.")
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
    """Emit GROUP, or all groups, now, with the reason `flush`.

    The worker that owns the partition emits in its next pass and logs it. If no worker runs, the request waits in Redis.
    """
    from streams_app.formatting import counted
    from streams_app.operations.audit import audit
    from streams_app.operations.flush import flush

    if everything == (group is not None):
        raise click.UsageError("name a GROUP, or --all")
    chosen = one_fold(settings, fold)
    flushed = asyncio.run(flush(settings, chosen, group, timeout + settings.worker.tick_ms / 1000))
    click.echo(f"flushed {counted(flushed.groups, 'group')} in {counted(flushed.partitions, 'partition')}")
    audit(SystemClock(), "flush", fold=chosen.name, group="--all" if group is None else repr(group), groups=flushed.groups)


@command.command(name="drop")
@with_settings
@click.option("--fold", metavar="NAME", help="Name of the fold; optional if there is only one.")
@click.option("--reason", metavar="TEXT", help="Why, for the log of the worker; required with --yes.")
@click.option("--yes", is_flag=True, help="Drop it; without this option nothing is dropped.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 3_600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for a worker, on top of worker.tick.",
)
@click.argument("group")
def drop_now(settings: Settings, fold: str | None, reason: str | None, yes: bool, timeout: float, group: str) -> None:
    """Drop the open GROUP without a record.

    Its events stay in the source topic, but no record will contain them. The next event of the group opens it again. The worker
    that owns the partition drops the group in its next pass and logs it. If no worker runs, the request waits in Redis.

    Without --yes, the command only shows what it would drop.
    """
    from streams_app.formatting import counted, escaped
    from streams_app.operations.audit import audit, user_text
    from streams_app.operations.drop import describe_drop, drop

    chosen, why = one_fold(settings, fold), (reason or "").strip()
    if not yes:
        click.echo(asyncio.run(describe_drop(settings, chosen, group)))
        click.echo("nothing was dropped: --yes --reason TEXT drops it")
        return
    if not why:
        raise click.UsageError("say why it is dropped, for the log of the worker: --reason TEXT")
    done = asyncio.run(drop(settings, chosen, group, user_text(), why, timeout + settings.worker.tick_ms / 1000))
    if done.groups:
        click.echo(f"dropped {counted(done.groups, 'group')} with {counted(done.events, 'event')}, without a record")
        audit(SystemClock(), "drop", fold=chosen.name, group=repr(group), groups=done.groups, reason=repr(why))
    if done.closed:
        raise ConfigurationError([f"{escaped(group)} was emitted before the worker of its partition took the request"])


def one_fold(settings: Settings, name: str | None) -> Fold:
    """Return the named fold, or without a name the only fold; raise ConfigurationError if there is none."""
    if name is not None:
        return settings.fold(name)
    if not settings.folds:
        raise ConfigurationError(["there is no fold in the settings"])
    if len(settings.folds) > 1:
        raise ConfigurationError([f"name a fold with --fold: {', '.join(fold.name for fold in settings.folds)}"])
    return settings.folds[0]
