"""Checks of subscribers: keys and types of events, retention compared with retries, commit metadata, memory for ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import offsets_in
from streams_app.errors import StreamsAppError
from streams_app.events.declaration import Event
from streams_app.events.payloads import schema_of
from streams_app.finding import Finding, Level, lasting
from streams_app.fold import RECORD_KEY, Fold
from streams_app.formatting import duration_text
from streams_app.kafka.admin import NO_RETENTION_LIMIT
from streams_app.kafka.facts import KafkaFacts
from streams_app.settings import Settings
from streams_app.subscribers.declaration.record_types import clashes, required_names
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscriber import Records
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.state.initial_offsets import NO_METADATA, committed, how_to_set_offsets

KEEPS: Final = {
    "names": "an array of names, list[str]",
    "last": "an object, name to last value, such as dict[str, Any]",
    "aggregates": "an object, name to aggregate, such as dict[str, Any]",
    "events": "an array of events; records_of(fold, list[Event]) gives the list itself",
}
"""Type of the changed field in folded records, by the setting ``keep`` of the fold; used in advice."""

ID_BYTES: Final = 120
"""Approximate number of bytes in Redis for one remembered event id with its source."""


async def subscriber_findings(
    settings: Settings, subscriptions: Sequence[Subscription], events: Sequence[Event[Any, Any]], kafka: KafkaFacts | None
) -> AsyncGenerator[Finding, None]:
    """Check a catalogue and its enabled subscribers; unless ``kafka`` is None, also the retention and commits that they need."""
    yield Finding(Level.OK, f"the catalogue {settings.events.catalogue} fits the settings")
    pure = (
        *key_findings(events, settings.folds),
        *field_findings(subscriptions, settings.folds, events),
        *id_findings(subscriptions),
    )
    for finding in pure:
        yield finding
    replays = replay_topic(settings.app_id)
    if kafka is None or kafka.hides_any([replays, *(one.topic for one in subscriptions)]):
        return
    existing = [one for one in subscriptions if one.topic in kafka.partitions]
    for finding in retention_findings(existing, kafka.retention_ms([one.topic for one in existing])):
        yield finding
    try:
        for one in existing:
            if one.subscriber.requires_commit and replays in kafka.partitions:
                tps = kafka.tps_of(sorted({one.topic, replays}))
                yield commit_finding(one, tps, await committed(settings, one, tps))
    except StreamsAppError:
        return  # the check of Kafka reports it


def key_findings(events: Sequence[Event[Any, Any]], folds: Sequence[Fold]) -> Iterator[Finding]:
    """Check whether the events that a fold reads have the group key of the fold as their record key (pure)."""
    for event in events:
        if event.format in ("debezium", "cloudevents"):
            continue  # other programs publish these events, and the catalogue does not declare their record keys
        for fold in folds:
            if fold.source != event.topic or callable(fold.group_key) or fold.group_key == RECORD_KEY:
                continue
            grouped = (fold.group_key,) if isinstance(fold.group_key, str) else fold.group_key
            if grouped != (event.keyed_by,):
                text = (
                    f"event {event.key} is keyed by {event.keyed_by or 'nothing'}, fold {fold.name} groups by {', '.join(grouped)}"
                )
                advice = "key the event by the group, or fold by @key: a group that lies in several partitions has several records"
                yield Finding(Level.WARNING, text, advice)


def field_findings(
    subscriptions: Sequence[Subscription], folds: Sequence[Fold], events: Sequence[Event[Any, Any]] = ()
) -> Iterator[Finding]:
    """Check whether folded records have the fields and types that their subscribers require (pure)."""
    emitted = {fold.name: (*fold.group_fields, fold.changed_field, "fold") for fold in folds}
    for one in subscriptions:
        source = one.subscriber.source
        if not isinstance(source, Records):
            continue
        schema, _ = schema_of(source.value_type)
        if missing := [repr(name) for name in schema.get("required", ()) if name not in emitted[source.fold]]:
            required = f"{source.value_type.__name__} requires {', '.join(missing)}"
            text = f"subscriber {one.subscriber.name}: {required}, which no record of {source.fold} has: each becomes a dead letter"
            yield Finding(Level.ERROR, text, f"the fields of a record are {', '.join(emitted[source.fold])}")
        fold = next(fold for fold in folds if fold.name == source.fold)
        yield from type_findings(one, source, fold, [event for event in events if event.topic == fold.source])


def type_findings(
    one: Subscription, source: Records[Any], fold: Fold, folded: Sequence[Event[Any, Any]]
) -> Iterator[Finding]:  # fmt: skip
    """Check whether the records of a fold have the types that a subscriber requires (pure).

    Args:
        folded: Events that the catalogue declares in the source topic of the fold.
    """
    who, payload = f"subscriber {one.subscriber.name}", source.value_type.__name__
    for clash in clashes(fold, source.value_type, folded[0] if len(folded) == 1 else None):
        wanted = f"{payload}.{clash.field} requires {clash.wanted}"
        text = f"{who}: {wanted}, and records of {fold.name} have {clash.made} there: each becomes a dead letter"
        keep = "{…}" if isinstance(fold.keep, dict) else f'"{fold.keep}"'
        advice = f"declare it as what they have; with keep = {keep} {fold.changed_field} is {KEEPS[fold.kept]}"
        yield Finding(Level.ERROR, text, advice)
    if required := required_names(fold, source.value_type):
        wanted = f"{payload}.{fold.changed_field} requires {', '.join(map(repr, required))}"
        text = f"{who}: {wanted}, and a record of {fold.name} has only the names that changed: without it, it becomes a dead letter"
        yield Finding(Level.WARNING, text, "give these fields a default, or declare it as dict[str, Any]")


def id_findings(subscriptions: Sequence[Subscription]) -> Iterator[Finding]:
    """Estimate the memory for the event ids that a subscriber remembers, and warn if deduplication by id is not enough (pure).

    Subscribers that remember event ids are checked: those with ``idempotent = "unknown"`` or ``"no"``. The warning is for
    ``"no"``, if the subscriber reads the records of a fold: after a loss of Redis, a second record with another id may contain the
    same events of the fold.
    """
    for one in subscriptions:
        declared = one.subscriber
        if declared.is_repeatable:
            continue
        bytes_each = ID_BYTES * declared.remember_ms // 1000
        text = f"subscriber {declared.name} remembers ids for {duration_text(declared.remember_ms)}"
        yield Finding(Level.OK, f"{text}: about {ID_BYTES} bytes of Redis each, {bytes_each / 1000:,g} kB for each event a second")
        if declared.idempotent == "no" and isinstance(declared.source, Records):
            text = f"subscriber {declared.name} takes records of a fold: after a loss of Redis some overlap, under other ids"
            yield Finding(Level.WARNING, text, "an event may be in two records then; guard by what the function has done before")


def retention_findings(subscriptions: Sequence[Subscription], retention: Mapping[str, int]) -> Iterator[Finding]:
    """Check whether topics retain an event for as long as a subscriber may take for it (pure).

    A subscriber may take as long as all attempts of an event together, plus the setting ``patience``, during which failures in an
    outage do not count as attempts.

    Args:
        retention: Retention of each topic in ms; :data:`.NO_RETENTION_LIMIT`: no limit. Topics of unknown retention are omitted.
    """
    for one in subscriptions:
        rule = one.subscriber.retry
        span_ms = max(each.total_ms for each in (rule, *rule.by.values())) + one.subscriber.patience_ms
        what = f"subscriber {one.subscriber.name}"
        kept_ms = retention.get(one.topic)
        if kept_ms is None:
            text = f"{what}: the retention of {one.topic} is not known, retries and patience take up to {lasting(span_ms)}"
            yield Finding(Level.WARNING, text, "the broker does not report it")
        elif kept_ms == NO_RETENTION_LIMIT or kept_ms >= 2 * span_ms:
            kept = "for ever" if kept_ms == NO_RETENTION_LIMIT else f"for {lasting(kept_ms)}"
            yield Finding(Level.OK, f"{what}: {one.topic} keeps its log {kept}, retries and patience take up to {lasting(span_ms)}")
        else:
            level = Level.ERROR if kept_ms <= span_ms else Level.WARNING
            text = f"{what}: {one.topic} keeps its log for {lasting(kept_ms)}, retries and patience take up to {lasting(span_ms)}"
            yield Finding(level, text, "lengthen retention.ms to twice that, or have fewer attempts and less patience")


def commit_finding(one: Subscription, tps: Collection[TP], commits: Mapping[TP, PartitionCommit]) -> Finding:
    """Check whether an at-most-once subscriber has a commit with metadata in each partition (pure).

    A worker does not run the subscriber if one of these commits is missing.
    """
    name = one.subscriber.name
    missing = len(set(tps) - commits.keys())
    if missing:
        text = f"subscriber {name} has no commit in {missing} of {len(tps)} partitions: no worker runs it"
        return Finding(Level.ERROR, text, how_to_set_offsets(name))
    if not all((positions := offsets_in(commit)) and name in positions and positions[name].metadata for commit in commits.values()):
        advice = f"use a broker that keeps it, then streams-app reset --subscriber {name} --at ..."
        return Finding(Level.ERROR, f"subscriber {name}: {NO_METADATA}", advice)
    return Finding(Level.OK, f"subscriber {name}: its commits record what has begun")
