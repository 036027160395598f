"""Context of a subscriber: the objects that its processors, one for each partition, share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender
from streams_app.schemas.waiting import PatientRegistry
from streams_app.settings import Limits
from streams_app.subscribers.declaration.subscriber import Subscriber
from streams_app.subscribers.execution.crash_isolation import CrashIsolation
from streams_app.subscribers.execution.dead_letter_writer import DeadLetterWriter
from streams_app.subscribers.execution.decoding import Decode
from streams_app.subscribers.execution.dispatcher import Dispatcher
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.subscriber_metrics import SubscriberMetrics
from streams_app.subscribers.state.store import SubscriberStore


@dataclass(frozen=True, slots=True)
class SubscriberContext:
    """Objects that the processors of one subscriber share.

    Attributes:
        store: Returns the store of a partition's state in Redis, given the partition and the token of a claim.
        replays_topic: Topic of replayed events; "" if the application has none.
        schemas: Fetches the schemas of framed events; None: no event is framed.
    """

    subscriber: Subscriber[Any, Any, Any]
    dispatcher: Dispatcher
    decode: Decode
    store: Callable[[TP, str], SubscriberStore]
    dead_letters: Callable[[TP], DeadLetterSender]
    clock: TrustedClock
    subscriber_metrics: SubscriberMetrics
    replays_topic: str = ""
    crash_isolation: CrashIsolation = field(default_factory=CrashIsolation)
    limits: Limits = field(default_factory=Limits)
    schemas: PatientRegistry | None = None

    def dead_letter_writer(self, tp: TP, on_acknowledged: Callable[[Sequence[InFlightEvent]], None]) -> DeadLetterWriter:
        """Create the writer for the dead letters of one partition."""
        is_ordered = self.subscriber.ordered is not None
        return DeadLetterWriter(
            tp,
            self.subscriber.name,
            self.dead_letters(tp),
            on_acknowledged,
            self.subscriber_metrics.dead_lettered,
            self.limits,
            is_ordered=is_ordered,
        )
