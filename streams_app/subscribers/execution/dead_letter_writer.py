"""Writes the dead letters of a subscriber in one partition; the broker's acknowledgement of a dead letter finishes its event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import DeadLetterSender, unacknowledged_text
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.errors import BadEventError
from streams_app.events.codec import event_id
from streams_app.reasons import FINISHED_LATE
from streams_app.settings import Limits
from streams_app.subscribers.declaration.replayed_event import REPLAY_HEADER, OriginalPosition, parse_replay, received_headers
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.retry_decision import DeadLettering, dead_lettering

_UNNAMED: Final = ("event-id", b"")

AFTER_TIMEOUT: Final = "its function succeeded after its time-out"
GOES_ON: Final = "; the next events of its key continue"
DETAIL_CHARACTERS: Final = 400
"""The detail of a dead letter is truncated to this length before :data:`GOES_ON` is appended, so that this remark remains whole."""


def received_id(tp: TP, record: Any, limits: Limits) -> str:
    """Return the id of an event that was not decoded: the id in its headers if they are readable and within the limits.

    Otherwise, return its position; if it was replayed, the original one.
    """
    headers, origin = record.headers, OriginalPosition(tp, record.offset, record.timestamp)
    if headers and headers[0][0] == REPLAY_HEADER:
        origin, headers = parse_replay(headers) or (origin, headers)
    position = (origin.tp.topic, origin.tp.partition, origin.offset)
    try:
        return event_id(headers, limits, *position)
    except BadEventError:
        return ":".join(map(str, position))


class DeadLetterWriter:
    """Queues dead letters and sends them in the background, one request at a time.

    Attributes:
        fault: Why the broker has not acknowledged the dead letters that are being sent, as text; "" if no attempt to send them has
            failed.
    """

    def __init__(
        self,
        tp: TP,
        subscriber: str,
        sender: DeadLetterSender,
        on_acknowledged: Callable[[Sequence[InFlightEvent]], None],
        count: Callable[[Sequence[tuple[InFlightEvent, str]]], None] = lambda dead_letters: None,
        limits: Limits | None = None,
        *,
        is_ordered: bool = False,
    ) -> None:
        """Create a writer with an empty queue.

        Args:
            count: Called to count acknowledged dead letters, including those of :meth:`send_late_soon` and :meth:`send_last`, for
                which ``on_acknowledged`` is not called. Each item is the event and the reason of its dead letter.
            is_ordered: Whether events of one key run one after another. If so, the detail of a dead letter states that the next
                events of its key continue, unless the event has no key or the reason is ``finished-late``.
        """
        self.fault = ""
        self._tp = tp
        self._subscriber = subscriber
        self._sender = sender
        self._on_acknowledged = on_acknowledged
        self._count = count
        self._limits = limits or Limits()
        self._is_ordered = is_ordered
        self._unsent: list[tuple[InFlightEvent, DeadLettering]] = []
        self._sending: list[tuple[InFlightEvent, DeadLettering]] = []
        self._sampled: list[tuple[InFlightEvent, DeadLettering]] = []
        self._has_some = asyncio.Event()
        self._sending_now = asyncio.Lock()
        self._late: set[asyncio.Task[None]] = set()

    def put(self, event: InFlightEvent, dead_letter: DeadLettering) -> None:
        self._unsent.append((event, dead_letter))
        self._has_some.set()

    def sample_stalled(self) -> bool:
        """Return whether the request that was being sent at the previous call is still not acknowledged."""
        before, self._sampled = self._sampled, self._sending
        return bool(self._sending) and self._sending is before

    def _failed(self, topic: str, error: BaseException) -> None:
        self.fault = unacknowledged_text(topic, error)

    async def forever(self) -> None:
        """Send queued dead letters to the dead-letter topic until the task is cancelled."""
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            async with self._sending_now:
                self._sending = sending = self._unsent
                self._unsent = []
                await self._sender.send([self._rejected(event, dead_letter) for event, dead_letter in sending], self._failed)
                self.fault = ""
                # Only after the acknowledgement: otherwise both the dead letter and its event could be lost.
                self._sending = []
                self._count([(event, dead_letter.reason) for event, dead_letter in sending])
                self._on_acknowledged([event for event, _ in sending])

    async def sent(self, seconds: float) -> None:
        """Wait until the broker has acknowledged all queued dead letters or ``seconds`` have passed; :meth:`forever` must run."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._unsent or self._sending:
                    async with self._sending_now:
                        await asyncio.sleep(0)  # so that :meth:`forever` runs

    def send_late_soon(self, event: InFlightEvent, detail: str = AFTER_TIMEOUT) -> None:
        """Start sending a dead letter ``finished-late`` for an event whose function succeeded too late.

        The dead letter is sent even after the claim of the partition has ended.
        """
        sending = asyncio.create_task(self._send_late(event, dead_lettering(event, FINISHED_LATE, detail)), name=f"late {self._tp}")
        self._late.add(sending)
        sending.add_done_callback(self._late.discard)

    async def _send_late(self, event: InFlightEvent, second: DeadLettering) -> None:
        # Sent after the first dead letter, which may still be in flight.
        async with self._sending_now:
            await self._sender.send([self._rejected(event, second)])
            self._count([(event, second.reason)])

    async def send_last(self, dead_letters: Sequence[tuple[InFlightEvent, DeadLettering]], seconds: float) -> None:
        """Send dead letters of events that this claim can no longer finish, and wait until the broker has acknowledged them.

        After ``seconds``, return without an error; then some of these dead letters may be missing.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._sender.send([self._rejected(event, dead_letter) for event, dead_letter in dead_letters])
                self._count([(event, dead_letter.reason) for event, dead_letter in dead_letters])

    def _rejected(self, event: InFlightEvent, dead_letter: DeadLettering) -> RejectedEvent:
        # The id is the same whenever the dead letter of an attempt is sent, so that readers recognise duplicates.
        dead_letter_id = f"{self._subscriber}:{self._tp.topic}:{self._tp.partition}:{event.offset}:{event.attempts}"
        if dead_letter.reason == FINISHED_LATE:
            dead_letter_id += ":late"  # the time-out of the same attempt has a dead letter, too
        at_ms = str(event.record.timestamp).encode()
        # Events that were rejected before decoding, or never ran, must be searchable by their id, too.
        named = [pair if pair != _UNNAMED else ("event-id", self._received_id(event).encode()) for pair in dead_letter.headers]
        own = (("letter-id", dead_letter_id.encode()), *named, ("source-timestamp-ms", at_ms))
        detail = dead_letter.detail
        if self._is_ordered and event.record.key is not None and dead_letter.reason != FINISHED_LATE:
            detail = detail[:DETAIL_CHARACTERS] + GOES_ON
        return RejectedEvent(event.record, dead_letter.reason, detail, headers=(*own, *received_headers(event.record.headers)))

    def _received_id(self, event: InFlightEvent) -> str:
        return received_id(self._tp, event.record, self._limits)
