"""The rights on topics and consumer groups that a workload requires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streams_app.kafka.admin import Topic
from streams_app.kafka.rights import GROUP, TOPIC, RequiredRight, Right
from streams_app.requirements.workload import Workload
from streams_app.subscribers.declaration.replayed_event import replay_topic


def rights_of(workload: Workload, topics: Sequence[Topic]) -> list[RequiredRight]:
    """Return the rights that a workload needs in Kafka: on topics, on consumer groups, and to describe the given topics."""
    found = [*_of_folds(workload), *_of_stores(workload), *_of_subscribers(workload), *_of_views(workload), *_of_journals(workload)]
    used = {one.name for one in found if one.kind == TOPIC}
    return found + [RequiredRight(Right.DESCRIBE, TOPIC, topic.name, topic.role) for topic in topics if topic.name not in used]


def _of_folds(workload: Workload) -> Iterator[RequiredRight]:
    # The name of their consumer group is the id of the application.
    for fold in workload.folds:
        what = f"fold {fold.name}"
        yield RequiredRight(Right.READ, TOPIC, fold.source, f"source of {what}")
        yield RequiredRight(Right.WRITE, TOPIC, fold.output, f"output of {what}")
        yield RequiredRight(Right.WRITE, TOPIC, fold.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, workload.settings.app_id, what)


def _of_stores(workload: Workload) -> Iterator[RequiredRight]:
    for store in workload.stores:
        what = f"read store {store.name}"
        for fold in store.folds:
            yield RequiredRight(Right.READ, TOPIC, workload.settings.fold(fold).output, what)
        yield RequiredRight(Right.WRITE, TOPIC, store.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, f"{workload.settings.app_id}.{store.group}", what)


def _of_subscribers(workload: Workload) -> Iterator[RequiredRight]:
    for one in workload.subscriptions:
        what = f"subscriber {one.subscriber.name}"
        yield RequiredRight(Right.READ, TOPIC, one.topic, what)
        yield RequiredRight(Right.READ, TOPIC, replay_topic(workload.settings.app_id), f"put back for {what}")
        yield RequiredRight(Right.WRITE, TOPIC, one.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, one.group, what)


def _of_views(workload: Workload) -> Iterator[RequiredRight]:
    for view in workload.views:
        what = f"live view {view.name}"
        yield RequiredRight(Right.READ, TOPIC, view.source, f"source of {what}")
        yield RequiredRight(Right.WRITE, TOPIC, view.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, f"{workload.settings.app_id}.{view.group}", what)


def _of_journals(workload: Workload) -> Iterator[RequiredRight]:
    for journal in workload.journals:
        what = f"journal {journal.name}"
        yield RequiredRight(Right.READ, TOPIC, journal.source, f"source of {what}")
        yield RequiredRight(Right.READ, GROUP, f"{workload.settings.app_id}.{journal.group}", what)
