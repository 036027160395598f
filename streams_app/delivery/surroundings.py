"""What the ownership of partitions needs of the worker around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streams_app.delivery.commits import InDoubtError
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.health.status import Status


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The worker around the ownership of one consumer group.

    Attributes:
        clock: The wall clock as far as it is trusted, and the monotonic one.
        status: Where the ownership says why the worker is not ready.
        on_fatal: Ends the process.
        on_resync: Called with the name and the cause for each processor whose partition is claimed again.
        session_ms: Session time-out of the group.
        tick_seconds: How often :meth:`streams_app.delivery.ownership.Ownership.tick_once` is called.
        release_seconds: So long a revocation may take, with its last commit: the group waits for this member, and throws it
            out after the rebalance time-out.
        again_seconds: So long processors may take to end where their partition is claimed again by this process.
        on_doubt: Called with an error after which this member has to leave its group and to join it as another one, as a commit has
            had no answer; None: a commit that comes late does no harm here.
        on_went_back: Called with the name of a processor and a number of events that it had read and the broker has lost.
        about: Key under which the ownership speaks to the status; each group of a process has its own.
    """

    clock: TrustedClock
    status: Status
    on_fatal: Callable[[BaseException], None]
    on_resync: Callable[[str, str], None]
    session_ms: int
    tick_seconds: float
    release_seconds: float = 4.0
    again_seconds: float = 0.0
    on_doubt: Callable[[InDoubtError], None] | None = None
    on_went_back: Callable[[str, int], None] = lambda name, events: None
    about: str = "claim"
