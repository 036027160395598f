"""``streams-app read-store``: prepare the read side, fill it, compare it with its source, rebuild it."""

from __future__ import annotations

import asyncio

import click

from streams_app.cli.filling import fill
from streams_app.cli.options import with_settings
from streams_app.cli.rebuilding import rebuild
from streams_app.cli.verifying import verify
from streams_app.settings import Settings


@click.group(name="read-store")
def command() -> None:
    """Prepare read stores, fill, verify and rebuild them."""


@command.command(name="init")
@with_settings
@click.option("--store", metavar="NAME", help="Which one of [read_stores.NAME]; optional if there is only one.")
def init(settings: Settings, store: str | None) -> None:
    """Create the missing tables of a read store.

    Until they exist, a worker folds but does not sync.
    """
    from streams_app.read_store.targets.choice import open_store

    declared = settings.read_store(store)

    async def initialise() -> list[str]:
        opened = open_store(declared)
        try:
            return await opened.initialise()
        finally:
            await opened.close()

    for line in asyncio.run(initialise()):
        click.echo(line)


command.add_command(fill)
command.add_command(verify)
command.add_command(rebuild)
