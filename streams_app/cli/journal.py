"""``streams-app journal``: reads the events of a key, describes and verifies a journal, and removes its oldest days."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError, JournalGoneError, TryAgainError
from streams_app.settings import JournalSettings, Settings

if TYPE_CHECKING:
    from streams_app.cli.tables import Column
    from streams_app.journal.core.cursor import Start
    from streams_app.journal.store.segment import Segment
    from streams_app.operations.journal import JournalStatus

journal_option = click.option(
    "--journal", "name", metavar="NAME", help="Which one of [journals.NAME]; optional if there is only one."
)


@click.group(name="journal")
def command() -> None:
    """Read the events of a key, and maintain journals."""


@command.command(name="read")
@with_settings
@journal_option
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    help="After a cursor, as in 3-1041; earliest; latest; a duration ago, as in -24h; a day, as in 2026-08-20, or an ISO time.",
)
@click.option("--from-floor", is_flag=True, help="If the journal has removed the following events, continue at its floor.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of entries. Default: all.")
@click.option("--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.option("--fold", "fold_id", metavar="ID", help="Only the raw events of this folded record, and what each changed.")
@click.option("--unkeyed", is_flag=True, help="Events without a key instead of those of KEY.")
@click.argument("key", required=False)
def read(
    settings: Settings,
    name: str | None,
    begin: str,
    from_floor: bool,
    limit: int | None,
    follow: bool,
    as_json: bool,
    fold_id: str | None,
    unkeyed: bool,
    key: str | None,
) -> int:
    """Print the events of KEY, in their order, across days.

    Write KEY as it is in the events: account_7, 17, ["de",7]. With quotes, '"17"', it is a text. Without quotes, 17 stands for the
    number and the text. Reads only Redis. Each line has the time of the record, its partition and offset, and its value. A line
    that begins with -- shows which offsets are missing in the journal, and why.

    \b
        streams-app journal read account_7 --from -24h
        streams-app journal read account_7 --from 3-1041 --follow
        streams-app journal read account_7 --fold account-metrics:post-metric-updated:3:1041-1077

    \b
    Exit codes:
      0   everything was printed
      1   the journal has removed events after the cursor or some of --fold, or the settings are invalid
      2   --from is invalid
      75  Redis does not answer, or no worker has read all of --fold yet
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.journal.core.cursor import parse_start
    from streams_app.journal.core.entry import UNKEYED
    from streams_app.journal.reading.entries import keys_meant

    journal = settings.journal(name)
    if unkeyed == (key is not None):
        raise click.UsageError("name a KEY, or --unkeyed")
    keys = (UNKEYED,) if key is None else keys_meant(journal, key)
    if fold_id is not None:
        if unkeyed or follow or begin != "earliest":
            raise click.UsageError("--fold requires a KEY, without --from, --follow and --unkeyed")
        return asyncio.run(_print_folded(settings, journal, keys, fold_id, as_json=as_json))
    start = parse_start(begin, SystemClock().now_ms())
    shown = "events without a key" if key is None else key
    try:
        asyncio.run(_print(settings, journal, keys, start, shown, limit, follow=follow, from_floor=from_floor, as_json=as_json))
    except JournalGoneError as error:
        click.echo(f"error: {error}; --from-floor continues there", err=True)
        return error.exit_code
    return 0


async def _print(
    settings: Settings,
    journal: JournalSettings,
    keys: tuple[bytes, ...],
    start: Start,
    shown: str,
    limit: int | None,
    *,
    follow: bool,
    from_floor: bool,
    as_json: bool,
) -> None:
    from streams_app.formatting import counted, escaped, json_line
    from streams_app.journal.core.entry import UNKEYED
    from streams_app.journal.reading.entries import Entry, key_fault
    from streams_app.journal.reading.reader import JournalReader
    from streams_app.operations.journal import begin_text, line_of

    count, cursor, is_unkeyed = 0, "", keys == (UNKEYED,)
    if fault := key_fault(journal, settings.limits, keys):
        click.echo(f"{fault}: journal read --unkeyed shows them", err=True)
    async with JournalReader(settings, journal.name) as reader:
        reading = reader.reading(keys, start, from_floor=from_floor)
        async with aclosing(reader.read_on(reading, follow=follow)) as items:
            async for found in items:
                if follow and not cursor and (begin := begin_text(reading.floors)):
                    click.echo(f"{escaped(shown)}: {begin}", err=True)  # the summary at the end may never come
                click.echo(json_line(found.as_json()) if as_json else line_of(found, with_key=is_unkeyed))
                cursor, count = found.cursor, count + isinstance(found, Entry)
                if count == limit:
                    break
        is_whole = count != limit
    end = "all that is there now" if is_whole else "there may be more"
    unread = reading.unread if is_whole else []
    end = f"{end}; {begin}" if (begin := begin_text(reading.floors)) else end
    summary = f"{escaped(shown)}: {'no event' if not count else counted(count, 'event')}, {end}"
    click.echo(summary + (f"; --from {cursor} continues after it" if cursor else ""), err=True)
    if unread:
        listed = ", ".join(map(str, unread))
        click.echo(f"not read yet by a worker, or lost by Redis: partition {listed} of {journal.source}", err=True)


async def _print_folded(
    settings: Settings, journal: JournalSettings, keys: tuple[bytes, ...], fold_id: str, *, as_json: bool
) -> int:
    from streams_app.formatting import counted, json_line, shown
    from streams_app.journal.reading.entries import Gap
    from streams_app.operations.folded_events import parse_fold_id, raw_events
    from streams_app.operations.journal import line_of

    where = parse_fold_id(fold_id)
    count, missing = 0, Counter[str]()
    names: dict[str, None] = {}
    async with aclosing(raw_events(settings, journal, keys, where)) as events:
        async for found in events:
            if isinstance(found, Gap):
                missing[found.why] += found.last - found.first + 1
                click.echo(json_line(found.as_json()) if as_json else line_of(found))
                continue
            count += not found.rejected
            names |= dict.fromkeys(found.changed or ())
            if as_json:
                changed = None if found.changed is None else list(found.changed)
                click.echo(json_line({**found.entry.as_json(), "changed": changed, "refused": found.rejected or None}))
                continue
            if found.rejected:
                why = f"not in the record: {found.rejected}"
            elif found.changed is None:
                why = "in the record"
            else:
                why = f"changed {', '.join(map(shown, found.changed)) or 'nothing'}"
            click.echo(f"{line_of(found.entry)}\n    {why}")
    listed = f" ({', '.join(map(shown, sorted(names)))})" if names else ""
    click.echo(f"{fold_id}: {counted(count, 'event')}, {counted(len(names), 'changed name')}{listed}", err=True)
    below, unread = missing.pop("removed", 0), missing.pop("unread", 0)
    total = where.last - where.first + 1
    if below:
        click.echo(f"{below:,} of its {total:,} offsets are below the floor: events there are removed", err=True)
    if missing:
        click.echo(f"{missing.total():,} of its offsets are not kept, see above", err=True)
    if unread:
        left = f"no worker has read {unread:,} of its {total:,} offsets yet, or Redis has lost them"
        click.echo(f"{left}: start a worker, then retry", err=True)
    return TryAgainError.exit_code if unread else JournalGoneError.exit_code if below or missing else 0


@command.command(name="list")
@with_settings
@journal_option
@click.option("--top", is_flag=True, help="List the keys with most bytes instead, by the ten largest keys of each segment.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of days or keys.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each segment, for programs.")
def list_segments(settings: Settings, name: str | None, top: bool, limit: int, as_json: bool) -> None:
    """List what journals hold: days, events, bytes received and kept.

    Reads Redis; no worker has to run.
    """
    from streams_app.cli.tables import print_fitted
    from streams_app.formatting import json_line
    from streams_app.operations.journal import journal_status, segment_json, summary_of

    chosen = settings.journals if name is None and len(settings.journals) > 1 else (settings.journal(name),)
    for journal in chosen:
        status = asyncio.run(journal_status(settings, journal))
        if as_json:
            for partition, segment in status.segments:
                click.echo(json_line(segment_json(status, partition, segment)))
            continue
        click.echo(summary_of(status))
        if any(status.shards.values()):
            print_fitted(_key_columns(status, limit) if top else _day_columns(status, limit))


def _day_columns(status: JournalStatus, limit: int) -> list[Column]:
    from streams_app.cli.tables import Column
    from streams_app.operations.journal import days_of, size_text

    days = list(days_of(status.segments))[:limit]
    return [
        Column("DAY", [one.day for one in days]),
        Column("SEGMENTS", [str(one.segments) for one in days], rank=3),
        Column("COMPRESSED", [str(one.packed) for one in days], rank=2),
        Column("EVENTS", [f"{one.entries:,}" for one in days]),
        Column("RECEIVED", [size_text(one.received_bytes) for one in days]),
        Column("KEPT", [size_text(one.stored_bytes) for one in days]),
        Column("RATIO", [f"{one.received_bytes / one.stored_bytes:.1f}" if one.stored_bytes else "-" for one in days], rank=1),
        Column("LOST OFFSETS", [f"{one.lost:,}" if one.lost else "-" for one in days], rank=4),
    ]


def _key_columns(status: JournalStatus, limit: int) -> list[Column]:
    from streams_app.cli.tables import Column
    from streams_app.formatting import shown_key
    from streams_app.journal.reading.entries import key_text
    from streams_app.operations.journal import largest_keys, size_text

    keys = largest_keys(status, limit)
    texts = [key_text(status.journal, key) for key, _ in keys]
    return [
        Column("KEY", ["(without a key)" if text is None else shown_key(text) for text in texts], least=24),
        Column("RECEIVED AT LEAST", [size_text(size) for _, size in keys]),
    ]


@command.command(name="verify")
@with_settings
@journal_option
def verify(settings: Settings, name: str | None) -> int:
    """Decode every block, and compare the events with Kafka.

    Compares all events that Kafka still has. Workers may run. Changes nothing.

    \b
    Exit codes:
      0   every event is there, once and as it was produced
      1   there are faults, which are listed, or the settings are invalid
      75  Redis or Kafka does not answer
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.cli.progress import show_progress
    from streams_app.formatting import counted
    from streams_app.operations.journal_verify import verify_journal

    journal, clock = settings.journal(name), SystemClock()
    with show_progress(clock, "comparing") as show:
        found = asyncio.run(verify_journal(settings, journal, show))
    for line in found.named:
        click.echo(line)
    if found.faults > len(found.named):
        click.echo(f"and {found.faults - len(found.named):,} more")
    verdict = counted(found.faults, "fault") if found.faults else "nothing is wrong"
    click.echo(
        f"{journal.name}: {counted(found.entries, 'event')} in {counted(found.segments, 'segment')} decoded, {found.compared:,} "
        f"compared with {journal.source}: {verdict}"
    )
    return ConfigurationError.exit_code if found.faults else 0


@command.command(name="drop")
@with_settings
@journal_option
@click.option("--before", "day", required=True, metavar="DAY", help="A UTC day, as in 2026-08-20: this day and later ones stay.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; the default.")
@click.option("--yes", is_flag=True, help="Remove the days; without this option nothing is removed.")
def drop(settings: Settings, name: str | None, day: str, dry_run: bool, yes: bool) -> None:
    """Remove the days of a journal before DAY from Redis.

    A reader that has not read these days yet gets an error, or a gap if it continues at the first stored event. A running worker
    is fenced, and claims its partitions again within seconds.

    \b
    Exit codes:
      0   the days are removed, or there was nothing to remove
      1   --before is not a day, or the settings are invalid
      75  some days are left: Redis does not answer, or a worker keeps claiming a partition back; repeat the command
    """  # noqa: D301  # \b is for click: keep these lines as they are
    from streams_app.formatting import counted
    from streams_app.operations.audit import audit
    from streams_app.operations.journal import check_day, drop_segments, journal_status, segments_before, size_text

    if dry_run and yes:
        raise click.UsageError("--dry-run or --yes, not both")
    journal, clock = settings.journal(name), SystemClock()
    checked = check_day(day, clock.now_ms())
    chosen = segments_before(asyncio.run(journal_status(settings, journal)), checked)
    segments = [one for of_partition in chosen.values() for one in of_partition]
    events, stored = sum(one.entries for one in segments), sum(one.stored_bytes for one in segments)
    what = f"{counted(len(segments), 'segment')} of {journal.name} before {day}: {counted(events, 'event')}, {size_text(stored)}"
    if not yes or not segments:
        click.echo(f"{what}; nothing was removed{'' if not segments else '; --yes does it'}")
        return
    dropped: list[Segment] = []
    try:
        asyncio.run(drop_segments(settings, journal, chosen, dropped.append))
    finally:
        click.echo(f"removed {len(dropped)} of {what}")
        audit(clock, "journal-drop", journal=journal.name, before=day, segments=len(dropped))
