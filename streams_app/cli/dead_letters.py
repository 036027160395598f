"""``streams-app dead-letters``: what was refused and why; put back after a fix."""

from __future__ import annotations

import asyncio

import click
import orjson

from streams_app.cli.groups import one_fold
from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.settings import Settings

REASONS = (
    "tombstone",
    "not-json",
    "not-an-object",
    "no-group",
    "no-changed",
    "too-large",
    "too-many-names",
    "record-too-large",
    "user-error",
    "unknown-fold",
)

reason_option = click.option("--reason", type=click.Choice(REASONS), help="Only with this reason.")
fold_option = click.option("--fold", metavar="NAME", help="Refused by this fold; may be left out where there is only one.")


@click.group(name="dead-letters")
def command() -> None:
    """List refused events, put them back after a fix."""


@command.command(name="list")
@with_settings
@fold_option
@reason_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Letters at most, oldest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def list_letters(settings: Settings, fold: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """List what was refused, and why."""
    from streams_app.operating.dead_letters import letters_of
    from streams_app.operating.explain import time_text

    letters = asyncio.run(letters_of(settings, one_fold(settings, fold), reason, limit))
    for letter in letters:
        row = letter.row()
        if as_json:
            click.echo(orjson.dumps(row).decode())
            continue
        where = f"{row.get('source-topic')}-{row.get('source-partition')}@{row.get('source-offset')}"
        click.echo(f"{time_text(letter.timestamp_ms)}  {letter.reason:<16} {where}  key={row['key']}  {row.get('detail', '')}")
        click.echo(f"    {row['value']}")
    if not letters and not as_json:
        click.echo("no dead letters")


@command.command(name="replay")
@with_settings
@fold_option
@reason_option
@click.option("--again", is_flag=True, help="Also what was put back before: those events may be folded twice.")
@click.option("--dry-run", is_flag=True, help="Only say how many.")
def replay_letters(settings: Settings, fold: str | None, reason: str | None, again: bool, dry_run: bool) -> None:
    """Put refused events back into the source, for the fold that refused them and no other.

    After the fix: of the settings, of the producer's schema, of a function in Python. Each letter is put back once; with
    --reason the others count as seen, too. What is refused again becomes a dead letter again.
    """
    from streams_app.operating.audit import audit
    from streams_app.operating.dead_letters import replay
    from streams_app.operating.explain import counted

    chosen = one_fold(settings, fold)
    done = asyncio.run(replay(settings, chosen, reason, again=again, dry_run=dry_run))
    verb = "would put back" if dry_run else "put back"
    click.echo(f"{verb} {counted(done.put_back, 'event')} into {chosen.source} for fold {chosen.name}")
    if not dry_run:
        audit(SystemClock(), "replay", fold=chosen.name, reason=reason or "any", again=again, events=done.put_back)
    if done.skipped:
        click.echo(f"left out {done.skipped} folded records that were too large for the broker: they are no events")
