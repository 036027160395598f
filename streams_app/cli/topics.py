"""``streams-app topics``: creates the topics that the settings name."""

from __future__ import annotations

import asyncio

import click

from streams_app.cli.options import with_settings
from streams_app.errors import ConfigurationError
from streams_app.formatting import counted
from streams_app.settings import Settings


@click.group(name="topics")
def command() -> None:
    """Create the topics the settings name."""


@command.command(name="create", short_help="Create the topics that are missing.")
@with_settings
def create(settings: Settings) -> None:
    """Create the topics that are missing; existing topics are not changed.

    New topics get kafka.partitions partitions and kafka.replication_factor replicas: sources, outputs, topics of events,
    dead-letter topics, and APP_ID.again, through which dead letters of subscribers are replayed. A worker does not start while a
    topic is missing.

    For subscribers with idempotent = "no" it also commits offsets. A new subscriber, whose dead-letter topic does not exist yet,
    gets initial offsets by its `start`. A worker never does this, because it cannot distinguish a new subscriber from one whose
    commits are lost. An existing subscriber gets the first offset of partitions that were added to its topic; stop its workers for
    this.
    """
    from streams_app.operations.topics import create_missing_topics

    changes = asyncio.run(create_missing_topics(settings))
    for name in changes.created:
        click.echo(f"created  {name}  partitions={settings.kafka.partitions} replicas={settings.kafka.replication_factor}")
    for name in sorted(changes.existing):
        click.echo(f"exists   {name}")
    for name, partitions in changes.started.items():
        click.echo(f"placed   subscriber {name} in {counted(partitions, 'partition')}, by its `start`")
    for name, tps in changes.extended.items():
        listed = ", ".join(map(str, tps))
        click.echo(f"placed   subscriber {name} in {counted(len(tps), 'new partition')}, with their first record: {listed}")
    if changes.faults:
        raise ConfigurationError(changes.faults)
