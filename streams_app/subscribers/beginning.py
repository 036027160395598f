"""Where a subscriber goes on in a partition, by the last commit and its note."""

from __future__ import annotations

import logging
from itertools import count
from typing import Final

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import Claim, Mark, OtherLogError
from streams_app.subscribers.note import decoded
from streams_app.subscribers.window import NOTHING, Window

logger = logging.getLogger(__name__)

CLAIMS: Final = count(1)
"""Numbers of the claims of this process."""


def found(tp: TP, claim: Claim, mark: Mark) -> Window:
    """The window of a partition that was committed before.

    Raises:
        OtherLogError: The log is not the one of which the commit speaks.
    """
    note = decoded(mark.note, mark.offset, claim.edges.end)
    noted_id = note.topic_id if note is not None else ""
    if claim.was_reset or mark.offset > claim.edges.end or (noted_id and claim.topic_id and noted_id != claim.topic_id):
        raise OtherLogError(tp, "is another log than the one that was read", "run streams-app reset for the subscriber")
    if mark.note and note is None:
        logger.warning("the note of the commit says nothing, events above it may run again source=%s offset=%d", tp, mark.offset)
    window = Window(next(CLAIMS), mark.offset, NOTHING if note is None else note.above)
    if claim.edges.begin > mark.offset:
        logger.error(
            "retention overtook the subscriber, events are lost source=%s offsets=%d-%d", tp, mark.offset, claim.edges.begin - 1
        )
        window.cover(mark.offset, claim.edges.begin, ())
    return window
