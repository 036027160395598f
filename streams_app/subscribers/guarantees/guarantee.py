"""In what the promises of subscribers differ: what Redis is told of an event, and what becomes of one that was cut off."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from streams_app.delivery.processor import Claim, Processor
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import DeadLettering, InFlightEvent
from streams_app.subscribers.state.offset_tracker import OffsetTracker

LAST_MARKS_SECONDS: Final = 1.0


class DeliveryGuarantee(Processor):
    """The part of a subscriber's processor that its promise decides.

    Attributes:
        is_repeatable: Whether an event may run again although nobody knows what an attempt has done.
    """

    is_repeatable: bool

    @abstractmethod
    async def _take_over(self, claim: Claim, window: OffsetTracker) -> int:
        """Takes what Redis has from the owners before; returns the first offset that is wanted."""

    @abstractmethod
    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs until the claim ends, by what it is about."""

    @abstractmethod
    def _instead(self, work: InFlightEvent) -> DeadLettering | None:
        """The letter of a suspect, or of an interrupted event, that must not be called any more."""

    def _may_try(self, work: InFlightEvent) -> bool:
        """Whether an event may begin now; the one that is first must not be passed by others otherwise."""
        return True

    def _together(self, works: Sequence[InFlightEvent]) -> int:
        """How many of these events may begin now, from the first on."""
        return len(works)

    @abstractmethod
    def _begins(self, made: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """The next attempts of events, which are counted already; there are suspects only, or none, among them."""

    @abstractmethod
    def _keep(self, work: InFlightEvent) -> None:
        """Has Redis know of an event that waits."""

    @abstractmethod
    def _drop(self, offsets: Sequence[int]) -> None:
        """Has Redis know that events are finished."""

    @abstractmethod
    def _cut_off(self, work: InFlightEvent, call: Attempt) -> None:
        """A call was taken back."""

    @abstractmethod
    def _waits_for(self) -> str | None:
        """What it has waited for since this was asked last, see the metric ``streams_app_waiting_for``."""

    async def _settle(self) -> None:
        """Lets requests end that are under way."""

    @abstractmethod
    async def _leave(self) -> None:
        """Tells Redis what is left to tell, within :data:`LAST_MARKS_SECONDS`; nothing runs any more."""
