"""``streams-app reset``: remove a fold's or a live view's state, or let a subscriber begin somewhere else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.settings import Settings
from streams_app.words import counted

if TYPE_CHECKING:
    from streams_app.operating.reset_subscriber import SubscriberPlan
    from streams_app.subscribers.placing import At
    from streams_app.subscribers.subscription import Subscription


@click.command(name="reset", short_help="Remove a state, or move a subscriber.")
@with_settings
@click.option("--fold", metavar="NAME", help="Its name; it need not be in the settings any more.")
@click.option("--subscriber", metavar="NAME", help="A subscriber of the catalogue, instead of a fold; wants --at.")
@click.option("--live", metavar="VIEW", help="A live view, instead of a fold; workers that run read it from Kafka once more.")
@click.option(
    "--at",
    "moment",
    metavar="WHERE",
    help="With --subscriber: where it begins: earliest, latest, so long ago (24h), an ISO time, or ms since 1970.",
)
@click.option("--yes", is_flag=True, help="Do it; without this nothing is changed.")
def command(
    settings: Settings, fold: str | None, subscriber: str | None, live: str | None, moment: str | None, yes: bool
) -> None:  # fmt: skip
    """Remove a fold's or a live view's state, or let a subscriber begin somewhere else.

    Without --yes it only says what would be done. The workers of the application must be stopped, those of a subscriber those that
    run it.

    --fold NAME: after its source was deleted and made again, or to uninstall the fold. Groups that are still open would never be
    emitted: flush them first. The fold then begins by its `start`, as a new one. What read stores hold of it stays, and is replaced
    as groups are folded again.

    \b
    streams-app reset --subscriber ship --at latest
    streams-app reset --subscriber ship --at 2026-11-21T14:00 --yes

    --subscriber NAME --at WHERE: after the topic of its event was deleted and made again, after its commits were lost, or to do
    events again. Its offsets are committed anew and what Redis knows of its attempts and ids is removed: events from there on run,
    also those that have run before, whatever `idempotent` says, and those before it never do. What was put back and not handled yet
    is left behind; dead letters can be put back once more by `dead-letters replay --again`.

    --live VIEW: to read it from Kafka once more, or to uninstall it; it need not be in the settings any more. Its workers may run:
    they read it again, and meanwhile pages keep what they show, marked.
    """  # noqa: D301  # \b is for click: keep these lines as they are
    if sum(name is not None for name in (fold, subscriber, live)) != 1:
        raise click.UsageError("name one of --fold, --subscriber and --live")
    if (subscriber is None) != (moment is None):
        raise click.UsageError("--subscriber and --at belong together: where does it begin?")
    if live is not None:
        _reset_live(settings, live, yes=yes)
    elif fold is not None:
        _reset_fold(settings, fold, yes=yes)
    elif subscriber is not None and moment is not None:
        _reset_subscriber(settings, subscriber, _at(moment), yes=yes)


def _reset_live(settings: Settings, name: str, *, yes: bool) -> None:
    from streams_app.operating.audit import audit
    from streams_app.operating.live import keys_of_view, remove_keys

    keys = asyncio.run(keys_of_view(settings, name))
    click.echo(f"live view {name}: {counted(len(keys), 'key')} in Redis")
    if not yes:
        click.echo("nothing was changed; --yes does it")
        return
    asyncio.run(remove_keys(settings, keys))
    click.echo("removed")
    audit(SystemClock(), "reset", live=name, keys=len(keys))


def _at(text: str) -> At:
    from streams_app.moments import parse_moment

    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        return parse_moment(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.UsageError(f"--at: neither earliest nor latest, and {error}") from error


def _reset_subscriber(settings: Settings, name: str, at: At, *, yes: bool) -> None:
    from streams_app.operating.audit import audit
    from streams_app.operating.reset_subscriber import plan_subscriber, reset_subscriber
    from streams_app.subscribers.loading import subscription_named

    one = subscription_named(settings, name)
    planned = asyncio.run(plan_subscriber(settings, one, at))
    click.echo("\n".join(_lines(one, planned)))
    if not yes:
        click.echo("nothing was changed; --yes does it")
        return
    if planned.members:
        raise ConfigurationError([f"{counted(planned.members, 'worker')} of group {one.group!r} running: stop them first"])
    asyncio.run(reset_subscriber(settings, one, planned))
    click.echo("done")
    audit(SystemClock(), "reset", subscriber=name, at=at, partitions=len(planned.offsets), keys=len(planned.keys))


def _lines(one: Subscription, planned: SubscriberPlan) -> list[str]:
    lines = [f"subscriber {one.subscriber.name}: {counted(len(planned.keys), 'key')} in Redis would be removed"]
    for tp, mark in planned.offsets.items():
        held = planned.held.get(tp)
        now = "nothing is committed now" if held is None else f"{held.offset} is committed now"
        lines.append(f"  {tp} would be committed at {mark.offset}; {now}")
    return lines


def _reset_fold(settings: Settings, fold: str, *, yes: bool) -> None:
    from streams_app.operating.audit import audit
    from streams_app.operating.reset import carry_out, members, plan

    planned = asyncio.run(plan(settings, fold))
    if planned.is_empty:
        declared = ", ".join(known.name for known in settings.folds)
        raise ConfigurationError([f"there is nothing of a fold {fold!r}, neither in Redis nor in Kafka; declared are: {declared}"])
    running = asyncio.run(members(settings))
    click.echo(
        f"fold {fold}: {len(planned.keys)} keys in Redis, {planned.open_groups} open groups, {planned.outbox} records not yet "
        f"sent, committed offsets in {len(planned.offsets)} partitions"
    )
    for source in planned.missing:
        click.echo(f"  topic {source} does not exist: what was committed for it is gone")
    for tp, mark in planned.offsets.items():
        click.echo(f"  {tp} would be committed at {mark.offset}")
    if planned.open_groups:
        click.echo(
            f"  {counted(planned.open_groups, 'open group')} would never be emitted: "
            f"`streams-app groups flush --all --fold {fold}` emits them first"
        )
    for store in planned.read_stores:
        for line in store.lines():
            click.echo(f"  {line}")
    if not yes:
        click.echo("nothing was changed; --yes does it")
        return
    if running:
        raise ConfigurationError([f"{counted(running, 'worker')} of {settings.app_id!r} running: stop them first"])
    asyncio.run(carry_out(settings, fold, planned))
    click.echo("removed")
    audit(SystemClock(), "reset", fold=fold, keys=len(planned.keys), open_groups=planned.open_groups, outbox=planned.outbox)
