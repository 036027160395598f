"""Describes the subscribers of an application in its AsyncAPI document and at ``/events`` of a worker (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streams_app.events.asyncapi import FoldRecords, Receiver, document
from streams_app.formatting import duration_text
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.declaration.subscriber import Records
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.status import SubscriberStatus


def asyncapi_of(app_id: str, catalogue: Catalogue, subscriptions: Sequence[Subscription]) -> dict[str, Any]:
    """Return the AsyncAPI document of an application."""
    records = {
        one.subscriber.source.fold: FoldRecords(one.subscriber.source.fold, one.topic, one.subscriber.source.value_type)
        for one in subscriptions
        if isinstance(one.subscriber.source, Records)
    }
    return document(app_id, catalogue.events, list(records.values()), [_receiver(one) for one in subscriptions])


def status_entry(now: SubscriberStatus, finished: Mapping[str, int]) -> dict[str, Any]:
    """Return the status of a subscriber in one worker as a JSON object.

    Args:
        finished: Number of events that were finished since the worker started, by result.
    """
    return {
        "waiting": now.waiting,
        "running": now.running,
        "retrying": now.retrying,
        "oldest_waiting_seconds": now.oldest_waiting_ms / 1000,
        "suspended": now.is_suspended,
        "waiting_for": sorted(now.waits_for),
        "paused": [str(tp) for tp, _ in now.full],
        "finished": dict(finished),
    }


def events_page(
    app_id: str, catalogue: Catalogue, subscriptions: Sequence[Subscription], here: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the JSON object of ``/events``: all events and subscribers, and the status of those subscribers that run here.

    Args:
        here: Status of each subscriber that runs in this worker, by name, see :func:`status_entry`.
    """
    return {
        "app_id": app_id,
        "events": [
            {"key": event.key, "topic": event.topic, "keyed_by": event.keyed_by, "description": event.description}
            for event in catalogue.events
        ],
        "subscribers": [
            {
                "name": one.subscriber.name,
                "event": one.subscriber.event_key,
                "topic": one.topic,
                "group": one.group,
                "dead_letters": one.dead_letters,
                "idempotent": one.subscriber.idempotent,
                "ordered": one.subscriber.ordered,
                "concurrency": one.subscriber.concurrency,
                "rate": None if one.subscriber.rate is None else str(one.subscriber.rate),
                "enabled": one.subscriber.is_enabled,
                "description": one.subscriber.description,
                "here": here.get(one.subscriber.name),
            }
            for one in subscriptions
        ],
    }


def _receiver(one: Subscription) -> Receiver:
    declared = one.subscriber
    extensions = {
        "x-idempotent": declared.idempotent,
        "x-ordered": declared.ordered,
        "x-rate": None if declared.rate is None else str(declared.rate),
        "x-timeout": duration_text(declared.timeout_ms),
        "x-retry": _retry(declared.retry),
        "x-dead-letters": one.dead_letters,
        "x-consumer-group": one.group,
    }
    kept = {name: value for name, value in extensions.items() if value is not None}
    return Receiver(declared.name, declared.description, declared.event_key, one.topic, kept)


def _retry(rule: Retries) -> dict[str, Any]:
    described: dict[str, Any] = {
        "attempts": rule.attempts,
        "first": duration_text(rule.first_ms),
        "factor": rule.factor,
        "longest": duration_text(rule.longest_ms),
    }
    if rule.never:
        described["never"] = [kind.__name__ for kind in rule.never]
    if rule.by:
        described["by"] = {kind.__name__: _retry(other) for kind, other in rule.by.items()}
    return described
