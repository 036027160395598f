"""``streams-app read-store rebuild``: a new table beside the one in use, which then takes its place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from streams_app.cli.options import with_settings
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.operations.rebuild import Rebuilt
    from streams_app.settings import ReadStoreSettings


@click.command(name="rebuild", short_help="Fill a new table and put it in the place of the present one.")
@with_settings
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
def rebuild(settings: Settings, store: str | None) -> None:
    """Fill a new table for a read store, and swap it with the current one.

    The table gets what the folded topics hold, with the values of now, and what only the present table has. Workers and readers may
    go on all the time: the switch is one transaction, no value goes back, and the former table stays as TABLE_old until the next
    rebuild. One that is interrupted has changed nothing; call it again.
    """
    from streams_app.operations.rebuild import told

    declared = settings.read_store(store)
    for line in told(asyncio.run(_run(settings, declared)), declared):
        click.echo(line)


async def _run(settings: Settings, declared: ReadStoreSettings) -> Rebuilt:
    from streams_app.cli.showing import showing
    from streams_app.clock import SystemClock
    from streams_app.operations.rebuild import Rebuild

    clock = SystemClock()
    with showing(clock, "reading") as show:
        return await Rebuild(settings, declared, clock, on_found=click.echo, on_progress=show).run()
