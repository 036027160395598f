"""``streams-app reset``: removes the state of a fold, live view or journal, or moves a subscriber to other offsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.formatting import counted
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.operations.reset_fold import ResetPlan
    from streams_app.subscribers.state.initial_offsets import At


@click.command(name="reset", short_help="Remove a state, or move a subscriber.")
@with_settings
@click.option("--fold", metavar="NAME", help="Name of the fold; the settings need not declare it.")
@click.option("--subscriber", metavar="NAME", help="A subscriber of the catalogue, instead of a fold; requires --at.")
@click.option("--live", metavar="VIEW", help="A live view, instead of a fold; running workers read it from Kafka again.")
@click.option("--journal", metavar="NAME", help="A journal, instead of a fold; running workers fill it again from its source.")
@click.option(
    "--at",
    "moment",
    metavar="WHERE",
    help="With --subscriber: its new position: earliest, latest, a duration ago (24h), an ISO time, or ms since 1970.",
)
@click.option(
    "--emit", "is_emitted", is_flag=True, help="With --fold: open groups and records not yet sent go to the output topic first."
)
@click.option("--yes", is_flag=True, help="Apply the change; without this option nothing is changed.")
def command(
    settings: Settings, fold: str | None, subscriber: str | None, live: str | None, journal: str | None, moment: str | None,
    is_emitted: bool, yes: bool,
) -> None:  # fmt: skip
    """Remove the state of a fold, live view or journal, or move a subscriber to another position.

    Without --yes it only shows what it would do. For --fold, stop all workers of the application first. For --subscriber, stop the
    workers that run it.

    --fold NAME: after the source was deleted and created again, or to uninstall the fold. Open groups are removed without a record,
    unless --emit is given: then open groups and unsent records are emitted, and nothing is removed before the broker has
    acknowledged all of them. Afterwards the fold begins like a new one, by its `start`. Its values in read stores stay, and are
    replaced as groups are folded again.

    \b
    streams-app reset --subscriber ship --at latest
    streams-app reset --subscriber ship --at 2026-11-21T14:00 --yes

    --subscriber NAME --at WHERE: after its topic was deleted and created again, after its commits were lost, or to repeat events.
    New offsets are committed, and the attempts and ids in Redis are removed. All events from WHERE on run, even those that have run
    before, with any `idempotent`; events before WHERE never run. Replayed events that are not handled yet are skipped; replay them
    again by `dead-letters replay --again`.

    --live VIEW: to read the view from Kafka again, or to uninstall it. The settings need not declare it. Its workers may run: they
    read it again, and meanwhile browsers show the present items, marked as not current.

    --journal NAME: after its source was deleted and created again, to change its key, or to uninstall it. Its workers may run: they
    fill it again from the source. Events that retention has removed there are gone.
    """  # noqa: D301  # \b is for click: keep these lines as they are
    if sum(name is not None for name in (fold, subscriber, live, journal)) != 1:
        raise click.UsageError("name one of --fold, --subscriber, --live and --journal")
    if (subscriber is None) != (moment is None):
        raise click.UsageError("--subscriber and --at belong together: where does it begin?")
    if is_emitted and fold is None:
        raise click.UsageError("--emit requires --fold: only a fold has open groups")
    if live is not None:
        _reset_live(settings, live, yes=yes)
    elif journal is not None:
        _reset_journal(settings, journal, yes=yes)
    elif fold is not None:
        _reset_fold(settings, fold, is_emitted=is_emitted, yes=yes)
    elif subscriber is not None and moment is not None:
        _reset_subscriber(settings, subscriber, _at(moment), yes=yes)


def _reset_state(settings: Settings, what: str, name: str, *, yes: bool) -> int | None:
    """Remove the state of a live view or journal, or show what would be removed; return the number of removed keys."""
    from streams_app.operations.state_removal import keys_of, remove_state
    from streams_app.requirements.components import kind_of

    kind = kind_of(what)
    keys = asyncio.run(keys_of(settings, kind, name))
    click.echo(f"{what} {name}: {counted(len(keys), 'key')} in Redis")
    if not yes:
        click.echo("nothing was changed; --yes does it")
        return None
    asyncio.run(remove_state(settings, kind, name))
    click.echo("removed")
    return len(keys)


def _reset_live(settings: Settings, name: str, *, yes: bool) -> None:
    from streams_app.operations.audit import audit

    if (keys := _reset_state(settings, "live view", name, yes=yes)) is not None:
        audit(SystemClock(), "reset", live=name, keys=keys)


def _reset_journal(settings: Settings, name: str, *, yes: bool) -> None:
    from streams_app.operations.audit import audit

    if (keys := _reset_state(settings, "journal", name, yes=yes)) is not None:
        audit(SystemClock(), "reset", journal=name, keys=keys)


def _at(text: str) -> At:
    from streams_app.operations.reset_offsets import moment_of

    try:
        return moment_of(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.UsageError(f"--at: {error}") from error


def _reset_subscriber(settings: Settings, name: str, at: At, *, yes: bool) -> None:
    from streams_app.operations.audit import audit
    from streams_app.operations.reset_offsets import plan_offsets, reset_offsets
    from streams_app.subscribers.declaration.loading import subscription_named

    one = subscription_named(settings, name)
    planned = asyncio.run(plan_offsets(settings, one, at))
    click.echo("\n".join(planned.lines(name)))
    if not yes:
        click.echo("nothing was changed; --yes does it")
        return
    if obstacle := planned.obstacle(one.group):
        raise ConfigurationError([obstacle])
    asyncio.run(reset_offsets(settings, one, planned))
    click.echo("done")
    audit(SystemClock(), "reset", subscriber=name, at=at, partitions=len(planned.offsets), keys=len(planned.keys))


def _reset_fold(settings: Settings, fold: str, *, is_emitted: bool, yes: bool) -> None:
    from streams_app.operations.audit import audit
    from streams_app.operations.reset_fold import carry_out, emit_all, members, plan

    planned = asyncio.run(plan(settings, fold))
    if planned.is_empty:
        declared = ", ".join(other.name for other in settings.folds)
        raise ConfigurationError([f"there is nothing of a fold {fold!r}, neither in Redis nor in Kafka; declared are: {declared}"])
    running = asyncio.run(members(settings))
    click.echo("\n".join(_lines_of_fold(fold, planned, is_emitted=is_emitted)))
    if not yes:
        click.echo("nothing was changed; --yes does it")
        return
    if running:
        raise ConfigurationError([f"{counted(running, 'worker')} of {settings.app_id!r} running: stop them first"])
    emitted = 0
    if is_emitted:
        emitted = asyncio.run(emit_all(settings, planned))
        click.echo(f"emitted {counted(emitted, 'group')}")
    asyncio.run(carry_out(settings, fold, planned))
    click.echo("removed")
    audit(
        SystemClock(), "reset", fold=fold, keys=len(planned.keys), open_groups=planned.open_groups, outbox=planned.outbox,
        emitted=emitted,
    )  # fmt: skip


def _lines_of_fold(fold: str, planned: ResetPlan, *, is_emitted: bool) -> list[str]:
    lines = [
        f"fold {fold}: {len(planned.keys)} keys in Redis, {planned.open_groups} open groups, {planned.outbox} records not yet "
        f"sent, committed offsets in {len(planned.offsets)} partitions"
    ]
    lines += [f"  topic {source} does not exist: its committed offsets are gone" for source in planned.missing]
    lines += [f"  {tp} would be committed at {position.offset}" for tp, position in planned.offsets.items()]
    if planned.open_groups or planned.outbox:
        lines.append(f"  {_fate_of_groups(fold, planned, is_emitted=is_emitted)}")
    for store in planned.read_stores:
        lines += [f"  {line}" for line in store.lines()]
    return lines


def _fate_of_groups(fold: str, planned: ResetPlan, *, is_emitted: bool) -> str:
    what = f"{counted(planned.open_groups, 'open group')} and {counted(planned.outbox, 'record')} not yet sent"
    if is_emitted:
        outputs = ", ".join(sorted({one.output for one in planned.emittable.values()}))
        return f"{what} would be emitted to {outputs} first"
    if planned.is_stranded:
        return f"{what} would never be emitted, as no worker can start with them: `--emit` emits them first"
    flush = f"`streams-app groups flush --all --fold {fold}`"
    return f"{what} would never be emitted: {flush} emits them while the workers run, `--emit` without them"
