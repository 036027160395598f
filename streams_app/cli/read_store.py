"""``streams-app read-store``: the tables of the read side."""

from __future__ import annotations

import asyncio

import click

from streams_app.cli.options import with_settings
from streams_app.errors import ConfigurationError
from streams_app.settings import Settings


@click.group(name="read-store")
def command() -> None:
    """Prepare the read store."""


@command.command(name="init")
@with_settings
def init(settings: Settings) -> None:
    """Create the tables of the read store where they are missing.

    A worker waits with syncing (not with folding) until they are there.
    """
    from streams_app.read_store.store import open_store

    if settings.read_store is None:
        raise ConfigurationError(["there is no [read_store] section in the settings"])

    async def initialise() -> list[str]:
        assert settings.read_store is not None  # looked at above
        store = open_store(settings.read_store)
        try:
            return await store.initialise()
        finally:
            await store.close()

    for line in asyncio.run(initialise()):
        click.echo(line)
