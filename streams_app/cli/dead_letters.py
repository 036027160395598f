"""``streams-app dead-letters``: lists rejected events, and replays them after a fix."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from streams_app.cli.groups import one_fold
from streams_app.cli.options import MomentType, with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.reasons import FINISHED_LATE, FOLLOWED, REASONS
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.clock import Clock
    from streams_app.operations.dead_letter import DeadLetterSelection
    from streams_app.operations.dead_letters import DeadLetterListing, ShownDeadLetter
    from streams_app.operations.replay import ReplayProgress

_POSITION: Final = re.compile(r"(\d{1,9}):(\d{1,18})")
KINDS: Final = {"fold": "fold", "store": "read store", "subscriber": "subscriber", "view": "live view"}
EXIT_SIGNALLED: Final = 128
"""Exit code after a signal, as in shells, is this number plus the number of the signal."""


class _PositionType(click.ParamType):
    """Converts ``PARTITION:OFFSET``, such as ``3:1041``, to a pair of numbers."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = _POSITION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not PARTITION:OFFSET, as in 3:1041", param, ctx)
        return int(found[1]), int(found[2])


def _selects(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters to a command. The command receives their values as ``chosen``."""
    for option in (
        click.option("--key", "keys", multiple=True, metavar="KEY", help="Only with this record key; may be repeated."),
        click.option(
            "--offset", "positions", type=_PositionType(), multiple=True, metavar="P:O",
            help="Only the event at this partition and offset of the source, as in 3:1041; may be repeated.",
        ),
        click.option(
            "--reason", "reasons", multiple=True, type=click.Choice(tuple(REASONS)), help="Only with this reason; may be repeated."
        ),
        click.option("--refused-by", metavar="NAME",
            help="Former name of the fold, store or subscriber that rejected them; default: the present name."),
        click.option(
            "--event-id", "event_ids", multiple=True, metavar="ID",
            help="With --subscriber: only the event with this id; may be repeated.",
        ),
        click.option(
            "--event-source", "event_sources", multiple=True, metavar="SOURCE",
            help="With --subscriber: only events with this ce_source, within which ids are unique; may be repeated.",
        ),
        click.option(
            "--since", type=MomentType(), metavar="WHEN",
            help="Only dead letters since this time: a duration ago (24h), an ISO time, or ms since 1970.",
        ),
        click.option("--view", metavar="NAME", help="Rejected by this one of [live.NAME] instead of a fold."),
        click.option("--subscriber", metavar="NAME", help="Rejected by this subscriber instead of a fold."),
        click.option("--store", metavar="NAME", help="Rejected by this one of [read_stores.NAME] instead of a fold."),
        click.option("--fold", metavar="NAME", help="Rejected by this fold; optional if there is only one."),
    ):  # fmt: skip
        command = option(command)
    return command


def _kind(fold: str | None, chosen: dict[str, Any]) -> str:
    """Return the kind of component that the options name, a key of :data:`KINDS`; ``fold`` if they name none."""
    given = [kind for kind in KINDS if (fold if kind == "fold" else chosen[kind]) is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(f'--{kind}' for kind in given)} exclude each other")
    kind = given[0] if given else "fold"
    if kind != "subscriber":
        for option, given in (("--event-id", chosen["event_ids"]), ("--event-source", chosen["event_sources"])):
            if given:
                raise click.UsageError(
                    f"{option} is for --subscriber: what a fold or a read store takes has no id, name it by --offset"
                )
    return kind


def _fold(settings: Settings, name: str | None) -> Fold:
    """Return the named fold, or without a name the only fold."""
    from streams_app.subscribers.declaration.loading import catalogue_of

    if name is None and not settings.folds:
        names = ", ".join(one.name for one in catalogue_of(settings).subscribers)
        raise ConfigurationError([f"name a subscriber with --subscriber: {names}"])
    return one_fold(settings, name)


def _dead_letters_of(settings: Settings, fold: str | None, chosen: dict[str, Any]) -> tuple[str, DeadLetterSelection]:
    from streams_app.operations.dead_letter import DeadLetterSelection
    from streams_app.operations.replay_preparation import subscription_as

    kind = _kind(fold, chosen)
    if kind == "subscriber":
        name = chosen["subscriber"]
        topic = subscription_as(settings, name, chosen["refused_by"] or name).dead_letters
    elif kind == "view":
        view = settings.live_view(chosen["view"])
        name, topic = view.name, view.dead_letters
    else:
        of = settings.read_store(chosen["store"]) if kind == "store" else _fold(settings, fold)
        name, topic = of.name, of.dead_letters
    return topic, DeadLetterSelection(
        settings.app_id, chosen["refused_by"] or name, frozenset(chosen["reasons"]), frozenset(chosen["positions"]),
        frozenset(os.fsencode(key) for key in chosen["keys"]), kind, frozenset(chosen["event_ids"]),
        frozenset(chosen["event_sources"]), 0 if chosen["since"] is None else chosen["since"](SystemClock().now_ms()), name,
    )  # fmt: skip


def _selected(settings: Settings, fold: str | None, chosen: dict[str, Any], *, interrupted: bool) -> DeadLetterSelection:
    """Return the dead letters that are to be replayed."""
    if _kind(fold, chosen) == "view":
        raise click.UsageError(
            "what a live view rejects cannot be replayed: correct the event and produce it again, for all who read it"
        )
    _, selection = _dead_letters_of(settings, fold, chosen)
    if interrupted and selection.kind != "subscriber":
        raise click.UsageError("--interrupted is for --subscriber: nothing else is ever interrupted")
    return selection


@click.group(name="dead-letters")
def command() -> None:
    """List rejected events, replay them after a fix."""


@command.command(name="list")
@with_settings
@_selects
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Maximum number of dead letters, oldest first."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def list_dead_letters(settings: Settings, fold: str | None, limit: int, as_json: bool, **chosen: Any) -> None:
    """List rejected events, the reasons, and whether they were replayed.

    A dead letter of a subscriber also has the id of its event and the number of attempts. --json also shows the whole value, the
    traceback of the last error, and the headers of the event.

    With the reason `interrupted`, the process died or lost the partition during the attempt, so the event may have been handled.
    With `interrupted, finished-late` or `timed-out, finished-late`, the function completed later, so the event was handled.
    """
    topic, selection = _dead_letters_of(settings, fold, chosen)
    listed = asyncio.run(_listed(settings, topic, selection, limit))
    for one in listed.shown:
        is_late = one.dead_letter.reason in FOLLOWED and one.dead_letter.source in listed.finished_late
        _print(one, as_json=as_json, is_late=is_late, is_replayed=one.dead_letter.digest() in listed.replayed)
    if not listed.shown and not as_json:
        of_subscribers = selection.kind == "fold" and settings.events.catalogue and not listed.has_others
        others = "; those of a subscriber: --subscriber NAME" if of_subscribers else ""
        click.echo(f"{_nothing(selection, has_others=listed.has_others)}{others}")
    if listed.total > len(listed.shown):
        text = f"{len(listed.shown):,} of {listed.total:,} dead letters are shown"
        click.echo(f"{text}, the oldest: --limit shows more, --since later ones", err=True)


def _nothing(selection: DeadLetterSelection, *, has_others: bool) -> str:
    """Return the message for an empty list, with the options of the selection that may be the reason."""
    whose = f"{KINDS[selection.kind]} {selection.component}"
    asked = selection.options
    # Dead letters before --since were not read, so it is unknown whether there are any.
    if asked and (has_others or selection.since_ms):
        return f"none of the dead letters of {whose} fits {' and '.join(asked)}"
    return f"no dead letters of {whose}"


async def _listed(settings: Settings, topic: str, selection: DeadLetterSelection, limit: int) -> DeadLetterListing:
    from streams_app.cli.progress import show_progress
    from streams_app.operations.dead_letters import read_dead_letters

    with show_progress(SystemClock(), "reading") as show:
        return await read_dead_letters(settings, topic, selection, limit, show)


def _print(one: ShownDeadLetter, *, as_json: bool, is_late: bool, is_replayed: bool) -> None:
    from streams_app.formatting import cut, escaped, json_line, shown, time_text
    from streams_app.operations.dead_letter import PREVIEW_BYTES

    dead_letter = one.dead_letter
    flags = {"finished-late": is_late, "put-back": is_replayed}
    row = dead_letter.row(None if as_json else PREVIEW_BYTES) | {flag: True for flag, is_so in flags.items() if is_so}
    if as_json:
        click.echo(json_line(row | ({"times": one.times} if one.times > 1 else {})))
        return
    where = f"{row.get('source-topic')}:{row.get('source-partition')}:{row.get('source-offset')}"
    key = "none" if row["key"] is None else cut(shown(row["key"]), PREVIEW_BYTES)
    reason = ", ".join([dead_letter.reason, *[FINISHED_LATE] * is_late, *["replayed"] * is_replayed])
    times = f"  (there {one.times} times)" if one.times > 1 else ""
    line = f"{reason:<16} {where}  key={key}  {_attempts(row)}{row.get('detail', '')}{times}"
    click.echo(f"{time_text(dead_letter.timestamp_ms)}  {escaped(line)}")
    if row["value"]:
        click.echo(f"    {escaped(row['value'])}")


def _attempts(row: dict[str, Any]) -> str:
    return f"id={row['event-id']}  attempts={row.get('attempts', '')}  " if "event-id" in row else ""


@command.command(name="replay", short_help="Replay rejected events after a fix.")
@with_settings
@_selects
@click.option("--limit", type=click.IntRange(1), help="Maximum number of events to replay, oldest first.")
@click.option("--again", is_flag=True, help="Also replay events that were replayed before: they may be handled twice.")
@click.option(
    "--interrupted",
    is_flag=True,
    help="With --subscriber: also replay interrupted events, which may have been handled; not those that finished late.",
)
@click.option("--dry-run", is_flag=True, help="Only show how many would pass now, and how many would be rejected again.")
def replay_dead_letters(
    settings: Settings,
    fold: str | None,
    limit: int | None,
    again: bool,
    interrupted: bool,
    dry_run: bool,
    **chosen: Any,
) -> int:
    """Replay rejected events, only for the fold, read store or subscriber that rejected them.

    First fix the cause (settings, schema of the producer, or a Python function) and restart the workers. Events that the current
    definition would reject again are counted and not replayed. Each event is replayed once; for a fold, into the partition of the
    source from which it came. Receipts in the dead-letter topic record which events were replayed. Events that were not selected or
    could not be replayed can be replayed later.

    The replay stops at the end that the dead-letter topic had at its start. Ctrl-C ends it after the current batch. Only one replay
    runs at a time for each fold and each subscriber: a second one reports the first, and ends with exit code 75. After a replay
    was killed, the next one can begin 30 s later.

    After a fold or subscriber was renamed, use --fold NEW --refused-by OLD, or --subscriber NEW --refused-by OLD. If the new one
    has start = "earliest", it reads the events anyway.

    With --store, folded records are written into that read store only, with the current values of its source. A newer version
    of a value in the store is not overwritten, so a record may be replayed at any time.

    With --subscriber, events go into the topic APP_ID.again, which only the subscribers of the application read. Only the given
    subscriber handles them, even if it has seen their ids before. Interrupted events are skipped unless --interrupted or --event-id
    selects them.
    """
    from streams_app.operations.audit import audit
    from streams_app.operations.replay import summary
    from streams_app.operations.replay_preparation import prepare_replay, replay_facts

    clock = SystemClock()
    selection = _selected(settings, fold, chosen, interrupted=interrupted)
    replay = prepare_replay(settings, selection, clock, limit=limit, again=again, interrupted=interrupted, dry_run=dry_run)
    done = replay.done
    number: int | None = None
    is_failed = True
    try:
        number = asyncio.run(run(replay, clock))
        is_failed = False
    finally:
        if done.is_begun:
            click.echo("\n".join(summary(done, dry_run=dry_run, failed=is_failed)))
        if done.is_begun and not dry_run:
            is_complete = not (is_failed or done.is_stopped)
            facts = replay_facts(selection, done, interrupted=interrupted, again=again, is_complete=is_complete)
            audit(clock, "replay", **facts)
    return 0 if number is None else EXIT_SIGNALLED + number


class StoppableReplay(Protocol):
    """A replay of dead letters that :func:`run` can run and stop.

    Attributes:
        on_batch: Called with the progress after each batch.
    """

    on_batch: Callable[[ReplayProgress], None]

    def stop(self) -> None:
        """End the replay after the current batch."""

    async def run(self) -> None:
        """Replay all selected dead letters."""


async def run(replay: StoppableReplay, clock: Clock) -> int | None:
    """Run a replay until it ends or a signal stops it; return the number of the first signal, or None.

    The first SIGINT or SIGTERM ends the replay after the current batch and its receipts, a second one ends it immediately.
    """
    from streams_app.cli.progress import show_progress
    from streams_app.operations.replay_preparation import progress_text

    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(replay.run())
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            task.cancel()
            return
        replay.stop()
        click.echo("ending after the current batch; press again to end at once", err=True)

    numbers = signal.SIGINT, signal.SIGTERM
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        with show_progress(clock, "") as show:
            replay.on_batch = lambda done: show(progress_text(done), done.searched + done.read, 2 * done.offsets)
            await task
    except asyncio.CancelledError:
        if not seen:
            raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return seen[0] if seen else None
