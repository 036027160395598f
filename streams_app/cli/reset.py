"""``streams-app reset``: remove a fold's state."""

from __future__ import annotations

import asyncio

import click

from streams_app.cli.options import with_settings
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError
from streams_app.settings import Settings


@click.command(name="reset")
@with_settings
@click.option("--fold", required=True, metavar="NAME", help="Its name; it need not be in the settings any more.")
@click.option("--yes", is_flag=True, help="Do it; without this nothing is changed.")
def command(settings: Settings, fold: str, yes: bool) -> None:
    """Remove a fold's state: after its source was deleted and made again, or to uninstall the fold.

    Without --yes it only says what would be removed. Groups that are still open would never be emitted: flush them first. The
    workers of the application must be stopped. The fold then begins by its `start`, as a new one. What read stores hold of it
    stays, and is replaced as groups are folded again.
    """
    from streams_app.operating.audit import audit
    from streams_app.operating.reset import carry_out, members, plan
    from streams_app.words import counted

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
