"""What a worker must find in Kafka before it starts: its topics, and the rights on what it reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.folding.metadata_size import faults_of
from streams_app.kafka.admin import admin_client, require, topics_of
from streams_app.kafka.rights import Needed, missing_of
from streams_app.settings import Settings
from streams_app.subscribers.rights import needed_rights
from streams_app.subscribers.topics import declared_topics


async def require_topics(settings: Settings) -> None:
    """Refuses to start a worker any of whose topics or rights is missing, of folds, read stores, subscribers or live views.

    Raises:
        ConfigurationError: Topics or rights are missing, all of which it names with the command that creates or grants them; or the
            marks of the folds do not fit into a commit; or the catalogue has a fault.
        TryAgainError: The broker cannot be reached.
    """
    if too_many := faults_of(settings.folds):
        raise ConfigurationError(too_many)
    await require_rights(settings, needed_rights(settings))
    topics = {topic.name: topic for topic in (*declared_topics(settings), *topics_of(settings))}
    await require(settings.kafka, list(topics.values()))


async def require_rights(settings: Settings, needed: Sequence[Needed]) -> None:
    """Refuses to start where a right is missing: no waiting grants it. A broker that is away is left to whoever asks it next.

    Raises:
        ConfigurationError: Each right that is missing, with the command that grants it; or the broker does not let us in.
    """
    try:
        async with admin_client(settings.kafka) as client:
            missing = await missing_of(client, needed)
    except TryAgainError:
        return
    if missing:
        raise ConfigurationError([f"{one}: {one.command(settings.kafka)}" for one in missing])
