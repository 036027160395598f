"""One claimed partition of a subscriber: what its processor and its delivery guarantee share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.fingerprints import Fingerprint, followed_by, thinned
from streams_app.delivery.processor import Claim, OffsetAndMetadata
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.state.offset_metadata import OffsetMetadata
from streams_app.subscribers.state.offset_tracker import Above, OffsetTracker

NEAR_FINGERPRINTS: Final = 3
"""Number of fingerprints of the newest records in the metadata of each commit; of older records there are fewer."""


class SubscriberPartition:
    """The state of one partition under one claim.

    Attributes:
        tp: The partition.
        context: What all partitions of the subscriber share.
        dead_letters: Sends dead letters of this partition.
        running: Attempts without an outcome, queued ones included.
        claim: The claim; not set before :meth:`restore`.
        tracker: Which offsets are finished; not set before :meth:`restore`.
        metadata_bytes: Size of the metadata of the last commit.
        is_claimed: Whether :meth:`restore` was called.
        is_revoked: Whether the partition is being released, so that nothing may start any more.
        start_limit: How many events may start at once because of the guarantee: 0: none; None: any number.
    """

    claim: Claim
    tracker: OffsetTracker

    def __init__(self, tp: TP, context: SubscriberContext, on_acknowledged: Callable[[Sequence[InFlightEvent]], None]) -> None:
        """Prepare for a claim.

        Args:
            tp: The partition.
            context: What all partitions of the subscriber share.
            on_acknowledged: Called with the events whose dead letters the broker has acknowledged.
        """
        self.tp = tp
        self.context = context
        self.dead_letters = context.dead_letter_writer(tp, on_acknowledged)
        self.running: set[Attempt] = set()
        self.metadata_bytes = 0
        self.is_claimed = self.is_revoked = False
        self.start_limit: int | None = None
        self._read: tuple[Fingerprint, ...] = ()

    def restore(self, claim: Claim, tracker: OffsetTracker, read: tuple[Fingerprint, ...]) -> None:
        """Begin with the offsets and the fingerprints that the claim found."""
        self.claim, self.tracker, self._read = claim, tracker, read
        self.is_claimed = True

    def add_fingerprint(self, batch: Batch) -> None:
        """Remember the last record of a batch, to detect later that the log was truncated."""
        records = batch.records
        if records and (not self._read or self._read[-1].offset < records[-1].offset):
            self._read = thinned(followed_by(self._read, records[-1]), near=NEAR_FINGERPRINTS, spread=1)

    def offset_metadata(self, above: Above) -> OffsetMetadata:
        """Make the content of commit metadata from what is finished, and begun, above the low watermark."""
        return OffsetMetadata(self.claim.topic_id, above, self._read)

    def position(self, low: int, metadata: str) -> OffsetAndMetadata:
        """Combine the low watermark with its metadata, whose size is shown in the status of the partition."""
        self.metadata_bytes = len(metadata)
        return OffsetAndMetadata(low, metadata)
