"""Facts about a group that has not been emitted, as data (pure). :mod:`streams_app.operations.group_text` has the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from streams_app.fold import Fold
from streams_app.folding.core.closing import CONTENT_BOUNDS, Bounds
from streams_app.folding.store.drop_request import DropAnswer
from streams_app.formatting import group_value
from streams_app.operations.auto_quiet_state import AutoQuietState
from streams_app.operations.listed_group import ListedGroup
from streams_app.quiet_period import QuietPeriod

if TYPE_CHECKING:
    from streams_app.operations.groups import StoredShard

STALLED_MS: Final = 10_000
"""Minimum difference between partition clock and wall clock, in ms, that counts as a difference."""

GroupVerdict: TypeAlias = Literal["sealed", "due", "clock-stopped", "backlog", "until-max-hold", "until-quiet"]
"""Why a group has not been emitted: its record waits for the broker, its worker emits it in the next pass, no worker advances the
clock of its partition, quiet groups wait for the end of a backlog, or it is open until ``max_hold`` or its quiet period ends."""


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """State of a group in one shard, as read from Redis.

    Attributes:
        member: The group key, as stored in Redis.
        row: None if the group is not open.
        names: Changed names of the group. If the fold keeps whole events, these are names of internal fields instead; ignore them.
        waiting: Number of records of the group among the first 10 000 in the outbox.
    """

    shard: StoredShard
    member: bytes
    row: ListedGroup | None
    names: tuple[str, ...]
    waiting: int


class BoundState(msgspec.Struct, frozen=True):
    """How far an open group is from one bound that closes it.

    Attributes:
        bound: Name of the setting: ``quiet_period``, ``max_hold``, ``max_events``, ``max_changed``, ``max_bytes``, ``close_when``.
        waits_for: What closes the group: ``silence``, ``time``, one ``event`` more than the limit allows or with certain values.
        limit: Limit of the bound, in ms, events, names or bytes; of a quiet period by event, the longest, and of one that sets
            itself, the one after the last event of the group. None for ``close_when``.
        present: Events, names or bytes so far; None for a bound on time and ``close_when``.
        due_in_ms: Time until the bound is reached; None if it is no bound on time.
        due_at_ms: The same as a time by the clock of the partition.
        is_by_event: Whether the last event of the group has set its own quiet period, or a function decides which event closes it.
        values: Of ``close_when``: the values that close the group, by path; None for a function, and for the other bounds.
    """

    bound: str
    waits_for: Literal["silence", "time", "event"]
    limit: int | None = None
    present: int | None = None
    due_in_ms: int | None = None
    due_at_ms: int | None = None
    is_by_event: bool = False
    values: dict[str, list[Any]] | None = None


class PartitionReading(msgspec.Struct, frozen=True):
    """How far the source partition of a group is read, and its clock.

    Attributes:
        read_to: Highest folded offset.
        end: Last stable offset of the partition; None: the broker has not answered.
        lag: Events that can be read and are not folded yet; None: unknown.
        hidden: Offsets that an open transaction hides.
        owner: The worker that has last claimed the partition; "": unknown.
        clock_behind_ms: Wall clock minus partition clock.
        holds_quiet_groups: Whether quiet groups are not closed until the backlog is read (``backlog = "merge"``).
    """

    source: str
    partition: int
    read_to: int
    end: int | None
    lag: int | None
    hidden: int
    owner: str
    clock_ms: int
    clock_behind_ms: int
    holds_quiet_groups: bool


class GroupDrop(msgspec.Struct, frozen=True):
    """The last ``streams-app groups drop`` of a group in one partition; it is stored for at least a week."""

    key: Any
    source: str
    partition: int
    events: int
    first_offset: int
    last_offset: int
    at_ms: int
    by: str
    reason: str

    @classmethod
    def of(cls, shard: StoredShard, member: bytes, answer: DropAnswer) -> GroupDrop:
        request = answer.request
        return cls(
            group_value(member), shard.fold.source, shard.partition, answer.events, answer.first_offset, answer.last_offset,
            answer.clock_ms, request.by, request.reason,
        )  # fmt: skip


class Reopening(msgspec.Struct, frozen=True):
    """How many records of a fold were followed by an event of their group within the quiet period, by a worker since its start.

    Attributes:
        worker: Address of the worker; None: ``http.port`` is 0, so no worker can be asked.
        fault: Why the numbers are not known; "" if they are.
        within_ms: The quiet period.
        is_estimate: Whether the worker watches only a sample of the groups.
    """

    worker: str | None
    fault: str = ""
    within_ms: int = 0
    emitted: float = 0
    followed: float = 0
    is_estimate: bool = False


class GroupState(msgspec.Struct, frozen=True):
    """State of a group in one partition.

    Attributes:
        key: The group key with its JSON type.
        due_in_ms: Time until the group closes if no event arrives; None: it is closed, or no time can be said.
        open: The open window; None: the group is closed, and its record waits in the outbox.
        names: Changed names of the window; () if the fold keeps whole events.
        bounds: The bounds of the window; () if it is closed, or due.
        outbox_records: Number of its records that the broker has not acknowledged.
        auto_quiet: The quiet period of its partition if it sets itself; otherwise None.
    """

    verdict: GroupVerdict
    key: Any
    due_in_ms: int | None
    open: ListedGroup | None
    names: tuple[str, ...]
    bounds: tuple[BoundState, ...]
    outbox_records: int
    reading: PartitionReading
    last_drop: GroupDrop | None = None
    auto_quiet: AutoQuietState | None = None


class GroupExplanation(msgspec.Struct, frozen=True):
    """Everything that is known of a group.

    Attributes:
        group: The group key as typed.
        at_ms: Time of the explanation.
        partitions: Number of partitions with state of the fold.
        states: State in each partition in which the group is open or has a record in the outbox; usually one, or none.
        drops: The last drop of the group in each partition.
        journal: Command that shows all events of the group; "" if no journal has the events.
    """

    fold: str
    source: str
    output: str
    dead_letters: str
    group: str
    at_ms: int
    partitions: int
    states: tuple[GroupState, ...]
    drops: tuple[GroupDrop, ...]
    reopening: Reopening
    journal: str = ""


def state_of(
    found: FoundGroup,
    fold: Fold,
    meta: Mapping[bytes, bytes],
    end: tuple[int, int] | None,
    now_ms: int,
    last_drop: GroupDrop | None = None,
) -> GroupState:
    """Return the state of a group that is open or waits in the outbox.

    Args:
        meta: Redis hash ``meta`` of the shard.
        end: Last stable offset of the partition and its high watermark; None: unknown.
    """
    reading = _reading(found.shard, fold, meta, end, now_ms)
    verdict, due_in_ms = _verdict(found, reading)
    bounds = () if found.row is None or verdict == "due" else tuple(_bounds(found.row, found.shard.clock_ms, fold, reading))
    names = () if fold.keeps_events else found.names
    return GroupState(
        verdict, group_value(found.member), due_in_ms, found.row, names, bounds, found.waiting, reading, last_drop,
        AutoQuietState.of(fold, meta.get(b"learned")),
    )  # fmt: skip


def _reading(
    shard: StoredShard, fold: Fold, meta: Mapping[bytes, bytes], end: tuple[int, int] | None, now_ms: int
) -> PartitionReading:
    fence = int(meta.get(b"fence", b"-1"))
    behind_ms = now_ms - shard.clock_ms
    return PartitionReading(
        fold.source,
        shard.partition,
        fence,
        None if end is None else end[0],
        None if end is None else max(0, end[0] - fence - 1),
        0 if end is None else end[1] - end[0],
        meta.get(b"owner", b"").decode("utf-8", "backslashreplace"),
        shard.clock_ms,
        behind_ms,
        behind_ms >= fold.quiet_period_ms and fold.backlog == "merge",
    )


def _verdict(found: FoundGroup, reading: PartitionReading) -> tuple[GroupVerdict, int | None]:
    """Return the verdict on a group, and the time until it closes."""
    row = found.row
    if row is None:
        return "sealed", None
    quiet, hold = row.quiet_in_ms, row.hold_in_ms
    if min(quiet, hold) <= 0:
        return "due", 0
    if reading.clock_behind_ms >= STALLED_MS and not reading.lag:
        return "clock-stopped", None
    if reading.holds_quiet_groups:
        return "backlog", None
    return "until-max-hold" if hold <= quiet else "until-quiet", min(quiet, hold) + _ahead_ms(reading)


def _ahead_ms(reading: PartitionReading) -> int:
    """Return how far, in ms, the partition clock is ahead of the wall clock; 0 if less than 10 s.

    The partition clock does not advance until the wall clock has reached it, so groups close that much later.
    """
    return -reading.clock_behind_ms if -reading.clock_behind_ms >= STALLED_MS else 0


def _bounds(row: ListedGroup, clock_ms: int, fold: Fold, reading: PartitionReading) -> Sequence[BoundState]:
    quiet, hold, ahead_ms = row.quiet_in_ms, row.hold_in_ms, _ahead_ms(reading)
    is_by_event = isinstance(fold.quiet_period, QuietPeriod)
    quiet_ms = fold.quiet_period_ms if fold.auto_quiet is None else row.quiet_period_ms
    found = [
        BoundState("quiet_period", "silence", quiet_ms, None, quiet + ahead_ms, clock_ms + quiet, is_by_event),
        BoundState("max_hold", "time", fold.max_hold_ms, None, hold + ahead_ms, clock_ms + hold),
    ]
    bounds = Bounds.of(fold)
    for name, bound in CONTENT_BOUNDS.items():
        if limit := getattr(bounds, name):
            found.append(BoundState(name, "event", limit, getattr(row, f"{bound.counts}s")))
    if callable(fold.close_when):
        found.append(BoundState("close_when", "event", is_by_event=True))
    elif fold.close_when is not None:
        values = {path: list(values) for path, values in fold.close_when.items()}
        found.append(BoundState("close_when", "event", values=values))
    return found
