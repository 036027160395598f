"""Checks, before a worker starts, that Kafka has all that the workload of the worker requires.

This module stands alone because commands use topics and rights without this check.
"""

from __future__ import annotations

from streams_app.errors import ConfigurationError
from streams_app.folding.metadata_size import faults_of
from streams_app.kafka.admin import admin_client, require_topics
from streams_app.kafka.rights import require_kafka_rights
from streams_app.requirements.components import rights_of, topics_of
from streams_app.requirements.workload import Workload
from streams_app.subscribers.state.initial_offsets import missing_initial_offsets


async def require_kafka(workload: Workload) -> None:
    """Check that Kafka has all topics, rights and initial offsets that a worker needs for its workload.

    Topics must exist in advance, because the broker would create them with its default number of partitions. Subscribers that must
    not run an event twice need a commit in each partition.

    Raises:
        ConfigurationError: Rights, topics or commits are missing; the error lists the commands that create or grant them. Or the
            broker denies access, or the offsets of the folds do not fit into a commit.
        TryAgainError: The broker does not answer.
    """
    if too_many := faults_of(workload.folds):
        raise ConfigurationError(too_many)
    settings, topics = workload.settings, topics_of(workload)
    async with admin_client(settings.kafka) as client:
        await require_kafka_rights(client, settings.kafka, rights_of(workload, topics))
        await require_topics(client, topics)
    unrepeatable = [one for one in workload.subscriptions if one.subscriber.requires_commit]
    if faults := await missing_initial_offsets(settings, unrepeatable):
        raise ConfigurationError(faults)
