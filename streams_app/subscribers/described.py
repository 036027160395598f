"""The subscribers of an application in its AsyncAPI document (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams_app.durations import duration_text
from streams_app.events.asyncapi import FoldRecords, Receiver, document
from streams_app.subscribers.catalogue import Catalogue
from streams_app.subscribers.declaration import Records
from streams_app.subscribers.retries import Retries
from streams_app.subscribers.subscription import Subscription


def asyncapi_of(app_id: str, catalogue: Catalogue, subscriptions: Sequence[Subscription]) -> dict[str, Any]:
    """The AsyncAPI document of an application.

    Args:
        app_id: The application.
        catalogue: What it declares.
        subscriptions: Its subscribers, with what the settings say of them.
    """
    records = {
        one.subscriber.source.fold: FoldRecords(one.subscriber.source.fold, one.topic, one.subscriber.source.payload)
        for one in subscriptions
        if isinstance(one.subscriber.source, Records)
    }
    return document(app_id, catalogue.events, list(records.values()), [_receiver(one) for one in subscriptions])


def _receiver(one: Subscription) -> Receiver:
    declared = one.subscriber
    extensions = {
        "x-idempotent": declared.idempotent,
        "x-ordered": declared.ordered,
        "x-timeout": duration_text(declared.timeout_ms),
        "x-retry": _retry(declared.retry),
        "x-dead-letters": one.dead_letters,
        "x-consumer-group": one.group,
    }
    kept = {name: value for name, value in extensions.items() if value is not None}
    return Receiver(declared.name, declared.description, declared.event_key, one.topic, kept)


def _retry(rule: Retries) -> dict[str, Any]:
    told: dict[str, Any] = {
        "attempts": rule.attempts,
        "first": duration_text(rule.first_ms),
        "factor": rule.factor,
        "longest": duration_text(rule.longest_ms),
    }
    if rule.never:
        told["never"] = [kind.__name__ for kind in rule.never]
    if rule.by:
        told["by"] = {kind.__name__: _retry(other) for kind, other in rule.by.items()}
    return told
