"""Checks the rights on topics and groups of Kafka; each finding has the command that grants the missing right."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from streams_app.checking.finding import Finding, Level
from streams_app.errors import StreamsAppError
from streams_app.kafka.admin import admin_client
from streams_app.kafka.rights import TOPIC, RequiredRight, Right, missing_of
from streams_app.requirements.rights import rights_of
from streams_app.requirements.topics import topics_of
from streams_app.requirements.workload import declared, enabled_subscriptions, without_subscribers
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import catalogue_of


async def rights_findings(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Yield a finding for each right in Kafka that the application needs and its user lacks.

    Nothing is yielded if no right is missing, Kafka does not answer, or Kafka does not report rights.
    """
    try:
        needed = rights_of(without_subscribers(settings).with_subscribers(), topics_of(declared(settings)))
        useful = [*_described_configs(settings), *_published(settings)]
        async with admin_client(settings.kafka) as client:
            missing, others = await missing_of(client, needed), await missing_of(client, useful)
    except StreamsAppError:
        return  # the checks of Kafka and subscribers report it
    for one in missing:
        yield Finding(Level.ERROR, str(one), one.command(settings.kafka))
    hidden = {one.name for one in missing if one.kind == TOPIC}
    for one in others:
        if one.name not in hidden:
            yield Finding(Level.WARNING, str(one), f"if this is needed, grant it: {one.command(settings.kafka)}")


def _described_configs(settings: Settings) -> Iterator[RequiredRight]:
    topics = {*settings.sources, *(view.source for view in settings.live_of_topics)}
    for topic in sorted(topics | {one.topic for one in enabled_subscriptions(settings)}):
        yield RequiredRight(Right.DESCRIBE_CONFIGS, TOPIC, topic, "check cannot see how long it is kept")


def _published(settings: Settings) -> Iterator[RequiredRight]:
    """Yield the right to write to each topic of the catalogue's events that this application does not read."""
    if settings.events.catalogue is None:
        return
    read = {*settings.sources, *(one.topic for one in enabled_subscriptions(settings))}
    for event in catalogue_of(settings).events:
        if event.topic not in read:
            yield RequiredRight(Right.WRITE, TOPIC, event.topic, f"event {event.key} cannot be published")
