"""What a replay of dead letters has done, in numbers and in words (pure)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from streams_app.reasons import Reason


@dataclass(slots=True)
class Replayed:
    """What a replay has done so far, or would do.

    Attributes:
        is_begun: Whether both topics exist, so that the replay has begun.
        offsets: Number of records that the dead-letter topic has.
        searched: How many of them were searched for receipts.
        read: How many of them were looked at as letters after that.
        put_back: Events that the source has acknowledged; in a dry run: that would be put back.
        refused: Reason → events that the present definition would refuse again.
        left: Cause in words → events that cannot be put back.
        before: Events that were asked for, and that an earlier replay has put back.
        twice: Letters that were written twice, of which one was taken.
        unselected: Letters that were not asked for; of those whose events were put back before, nothing is said.
        unknown: Events that were sent and not acknowledged: they may have arrived.
        forgotten: Events that were put back, but whose receipt was not acknowledged.
        is_limited: Whether the limit has ended the replay.
        is_stopped: Whether a signal has ended the replay.
    """

    is_begun: bool = False
    offsets: int = 0
    searched: int = 0
    read: int = 0
    put_back: int = 0
    refused: Counter[Reason] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    before: int = 0
    twice: int = 0
    unselected: int = 0
    unknown: int = 0
    forgotten: int = 0
    is_limited: bool = False
    is_stopped: bool = False


def summary(done: Replayed, *, dry_run: bool, failed: bool) -> list[str]:
    """The lines a person is told at the end, the counts last.

    Args:
        done: What the replay has done.
        dry_run: Whether nothing was really put back.
        failed: Whether the replay ended with an error.
    """
    lines = []
    if failed or done.is_stopped:
        lines.append(f"interrupted after {done.read} of {done.offsets} records of the dead-letter topic")
    if done.is_limited:
        lines.append("the limit is reached: what follows can be put back later")
    for count, words in (
        (done.before, "put back before: --again would repeat them"),
        (done.twice, "there twice: taken once"),
        (done.unselected, "not chosen: they can be put back later"),
        *((count, f"left where they are: {why}") for why, count in done.left.most_common()),
        (done.unknown, "sent and not acknowledged: they may have arrived, and the next replay puts them back again"),
        (done.forgotten, "put back and not remembered: the next replay puts them back again"),
    ):
        if count:
            lines.append(f"{count} {words}")
    reasons = ", ".join(f"{reason} {count}" for reason, count in done.refused.most_common())
    again = f"{done.refused.total()}{{}} refused again" + (f" ({reasons})" if reasons else "")
    if dry_run:
        return [*lines, f"dry run: {done.put_back} would pass now, " + again.format(" would be")]
    return [*lines, f"{done.put_back} put back, " + again.format("")]
