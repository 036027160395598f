"""Calls the function of a subscriber within a span, in the same slot and thread as without tracing.

The span is current while the function runs, so that events, logs and spans of the function belong to the same trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from streams_app.clock import Clock
from streams_app.formatting import duration_text
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.subscriber import Subscriber
from streams_app.subscribers.execution.executor import SWEEP_SECONDS
from streams_app.subscribers.execution.thread_executor import call_inline

if TYPE_CHECKING:
    from streams_app.tracing.spans import Tracing

SWEEP_MS: Final = round(SWEEP_SECONDS * 1000)


def traced(
    function: Callable[[Any], Any], subscriber: Subscriber[Any, Any, Any], app_id: str, tracing: Tracing, clock: Clock
) -> Callable[[Any], Any]:
    """Return a function that calls ``function`` within a CONSUMER span of OpenTelemetry.

    The span records a time-out if the attempt has ended after its deadline by the wall clock.
    """
    declared = subscriber.function
    of_subscriber = {
        "messaging.consumer.group.name": f"{app_id}.{subscriber.name}",
        "code.function.name": f"{declared.__module__}.{getattr(declared, '__qualname__', subscriber.name)}",
        "streams_app.subscriber": subscriber.name,
    }

    def span(event: Received[Any, Any]) -> AbstractContextManager[None]:
        attributes: dict[str, str | int] = {
            **of_subscriber,
            "messaging.destination.partition.id": str(event.partition),
            "messaging.kafka.offset": event.offset,
            "messaging.message.id": event.id,
            "streams_app.attempt": event.attempt,
        }
        if event.key is not None:
            attributes["messaging.kafka.message.key"] = event.key

        def failure_of(raised: BaseException | None) -> BaseException | None:
            if not _is_late(event, raised):
                return raised
            late = TimeoutError(f"not ended within {duration_text(subscriber.timeout_ms)}")
            late.__cause__ = raised  # its traceback shows what the function was waiting for
            return late

        return tracing.processing(event.topic, event.headers, attributes, failure_of)

    def _is_late(event: Received[Any, Any], raised: BaseException | None) -> bool:
        """Return whether an attempt has timed out: it was cancelled at its deadline, or its function returned after it."""
        if event.deadline_ms is None or not (raised is None or isinstance(raised, asyncio.CancelledError)):
            return False
        return clock.now_ms() >= event.deadline_ms + (SWEEP_MS if raised is None else -SWEEP_MS)

    async def await_traced(event: Received[Any, Any]) -> None:
        with span(event):
            await function(event)

    def call_traced(event: Received[Any, Any]) -> None:
        with span(event):
            call_inline(function, event)

    return await_traced if subscriber.is_async else call_traced
