"""``streams-app topics``: the topics the settings name."""

from __future__ import annotations

import asyncio

import click

from streams_app.cli.options import with_settings
from streams_app.settings import Settings


@click.group(name="topics")
def command() -> None:
    """Create the topics the settings name."""


@command.command(name="create")
@with_settings
def create(settings: Settings) -> None:
    """Create the topics that are missing; those that exist stay as they are.

    Sources, outputs, topics of events and dead-letter topics get kafka.partitions partitions and kafka.replication_factor
    replicas; so does APP_ID.again, through which dead letters of subscribers are put back. A worker refuses to start while a
    topic is missing.
    """
    from streams_app.kafka.admin import create_topics
    from streams_app.subscribers.topics import declared_topics

    created, existing = asyncio.run(create_topics(settings, declared_topics(settings)))
    for name in created:
        click.echo(f"created  {name}  partitions={settings.kafka.partitions} replicas={settings.kafka.replication_factor}")
    for name in existing:
        click.echo(f"exists   {name}")
