"""State of one claimed partition of a subscriber, shared by its processor and its delivery guarantee."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streams_app.delivery.batch import TP
from streams_app.delivery.claim import Claim
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.state.offset_metadata import OffsetMetadata
from streams_app.subscribers.state.offset_tracker import OffsetsAbove, OffsetTracker


class SubscriberPartition:
    """State of one partition under one claim.

    Attributes:
        running: Attempts without an outcome, including queued ones.
        claim: The claim; not set before :meth:`restore`.
        tracker: Which offsets are finished; not set before :meth:`restore`.
        is_claimed: Whether :meth:`restore` was called.
        read: Fingerprints of records that were read, for the metadata of commits.
        is_revoked: Whether the partition is being released, so that no attempt may start any more.
        unwritten_ids: Offset and id of each event whose id Redis has lost, until the id is written back.
        start_limit: Maximum number of events that the guarantee lets start together. 0 lets none start; None means no limit.
    """

    claim: Claim
    tracker: OffsetTracker

    def __init__(self, tp: TP, context: SubscriberContext, on_acknowledged: Callable[[Sequence[InFlightEvent]], None]) -> None:
        self.tp = tp
        self.context = context
        self.dead_letters = context.dead_letter_writer(tp, on_acknowledged)
        self.running: set[Attempt] = set()
        self.metadata_bytes = 0
        self.is_claimed = self.is_revoked = False
        self.unwritten_ids: list[tuple[int, str]] = []
        self.start_limit: int | None = None
        self.read: tuple[Fingerprint, ...] = ()

    def restore(self, claim: Claim, tracker: OffsetTracker, read: tuple[Fingerprint, ...]) -> None:
        """Set what was restored from the commit of the claim."""
        self.claim, self.tracker, self.read = claim, tracker, read
        self.is_claimed = True

    def offset_metadata(self, above: OffsetsAbove) -> OffsetMetadata:
        return OffsetMetadata(self.claim.topic_id, above, self.read)

    def position(self, low: int, metadata: str) -> OffsetAndMetadata:
        self.metadata_bytes = len(metadata)
        return OffsetAndMetadata(low, metadata)
