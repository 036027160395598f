"""Functions of the journal commands: they show entries, segments and the largest keys, and remove the oldest days."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from redis.asyncio import Redis

from streams_app.delivery.scripts import FencedError
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.exact_json import encode
from streams_app.formatting import counted, escaped, json_line, shown, shown_key, time_text
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.core.day import begin_of, day_of
from streams_app.journal.core.entry import UNKEYED
from streams_app.journal.reading.entries import REASONS, Entry, Gap, key_fault, key_text, keys_meant
from streams_app.journal.reading.reader import JournalReader
from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader, JournalStore, ShardStatus
from streams_app.journal.store.keys import journal_keys
from streams_app.journal.store.segment import Segment
from streams_app.operations.folded_events import parse_fold_id, raw_events
from streams_app.operations.groups import redis_of
from streams_app.redis_access.client import REDIS_ERRORS, why_unreachable
from streams_app.settings import JournalSettings, Settings

DAY_EXAMPLE: Final = "2026-08-20"

MAX_CLAIMS: Final = 5
"""Maximum number of successive claims of a partition by the command. It gives up if a worker claims the partition back each time
before a segment is removed."""


MAX_BEGINS: Final = 5
"""Maximum number of partitions whose first stored offset is shown."""


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The stored state of a journal, by partition.

    Attributes:
        shards: Status of each partition; None: no worker has read the partition yet, or Redis has lost its state.
    """

    journal: JournalSettings
    shards: dict[int, ShardStatus | None]

    @property
    def segments(self) -> list[tuple[int, Segment]]:
        """All segments, each with its partition; the newest day first."""
        found = [(number, one) for number, status in self.shards.items() if status is not None for one in status.segments]
        return sorted(found, key=lambda pair: (pair[1].day, -pair[0], pair[1].first), reverse=True)


async def journal_status(settings: Settings, journal: JournalSettings) -> JournalStatus:
    """Read the status of all partitions of a journal."""
    async with redis_of(settings) as redis:
        return JournalStatus(journal, await statuses_of(redis, settings.app_id, journal))


async def statuses_of(redis: Redis, app_id: str, journal: JournalSettings) -> dict[int, ShardStatus | None]:
    """Return the status of each partition; None for a partition without state.

    The state of partition 0 has the number of partitions. If it is missing, the result is None for partition 0, and nothing else.
    """
    reader = JournalShardReader(JournalScripts(redis))
    first = await reader.status(journal_keys(app_id, journal.name, journal.source, 0))
    found = {0: first}
    for number in range(1, 0 if first is None else first.partitions):
        found[number] = await reader.status(journal_keys(app_id, journal.name, journal.source, number))
    return found


def begin_text(floors: Mapping[int, int]) -> str:
    """Describe where a journal begins, if events before its floors are removed; otherwise return an empty text (pure)."""
    begins = [f"{partition}-{floor}" for partition, floor in sorted(floors.items()) if floor > 0]
    more = len(begins) - MAX_BEGINS
    listed = ",".join(begins[:MAX_BEGINS]) + (f" and {more:,} more" if more > 0 else "")
    return f"begins at {listed}, older removed" if begins else ""


def line_of(found: Entry | Gap, *, with_key: bool = False) -> str:
    """Format an entry or a gap as one line, for people; if requested, with the record key of an entry that has one (pure)."""
    if isinstance(found, Gap):
        return f"-- offsets {found.first} to {found.last} of partition {found.partition} are not kept: {REASONS[found.why]}"
    if found.too_large is not None:
        text = f"(too large to be kept: {found.too_large:,} bytes)"
    elif found.value is None:
        text = "(no value: a tombstone)"
    elif found.decoded is not None:
        text = json_line(found.decoded)
    else:
        text = escaped(found.value.decode(errors="backslashreplace"))
        text += f"  (not decoded: {escaped(found.undecoded)})" if found.undecoded else ""
    key = f"key {shown(found.key.decode(errors='backslashreplace'))}: " if with_key and found.key is not None else ""
    return f"{time_text(found.at_ms)}  {found.partition}-{found.offset}  {key}{text}"


def summary_of(status: JournalStatus) -> str:
    """Describe a journal in one sentence, for people (pure)."""
    journal, segments = status.journal, [one for _, one in status.segments]
    received, stored = sum(one.received_bytes for one in segments), sum(one.stored_bytes for one in segments)
    begin = f"{journal.name} of {journal.source}: "
    if not any(status.shards.values()):
        return f"{begin}no worker has read it yet, or Redis was wiped"
    days = f", {segments[-1].day} to {segments[0].day}" if segments else ""
    missing = [number for number, one in status.shards.items() if one is None]
    unread = f"; {counted(len(missing), 'partition')} not read yet" if missing else ""
    return (
        f"{begin}{counted(sum(one.entries for one in segments), 'event')} in {counted(len(segments), 'segment')} of "
        f"{counted(len(status.shards), 'partition')}{days}; {size_text(received)} received, {size_text(stored)} kept{unread}"
    )


def size_text(size: int) -> str:
    """Format a number of bytes for people, such as ``1.5 kB`` or ``20 MB``."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1_000:  # noqa: PLR2004  # SI
            break
        value, unit = value / 1_000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"  # noqa: PLR2004  # three digits


@dataclass(frozen=True, slots=True)
class DayOfJournal:
    """Numbers and sizes of the segments of a journal for one UTC day.

    Attributes:
        day: The day, such as ``2026-08-20``.
        segments: Number of segments; gaps do not count.
        packed: Number of compressed segments.
        received_bytes: Bytes of keys, values and headers of the events.
        stored_bytes: Size of the blocks with these events.
        lost: Number of offsets that retention removed from the topic before they were read.
    """

    day: str
    segments: int
    packed: int
    entries: int
    received_bytes: int
    stored_bytes: int
    lost: int


def days_of(segments: Iterable[tuple[int, Segment]]) -> Iterator[DayOfJournal]:
    """Summarize segments by day, in their order: the segments of one day must follow each other (pure)."""
    for day, of_day in groupby((one for _, one in segments), key=lambda one: one.day):
        found = list(of_day)
        kept = [one for one in found if one.form != "gap"]
        yield DayOfJournal(
            day, len(kept), sum(one.form == "packed" for one in kept), sum(one.entries for one in kept),
            sum(one.received_bytes for one in kept), sum(one.stored_bytes for one in kept),
            sum((one.last or one.first - 1) - one.first + 1 for one in found if one.form == "gap"),
        )  # fmt: skip


def largest_keys(status: JournalStatus, most: int) -> list[tuple[bytes, int]]:
    """Return the keys with the most received bytes, with a lower bound: a segment lists only its ten largest keys (pure)."""
    sizes: Counter[bytes] = Counter()
    for _, segment in status.segments:
        for key, size in segment.largest:
            sizes[key] += size
    return sizes.most_common(most)


def segment_json(status: JournalStatus, partition: int, segment: Segment) -> dict[str, Any]:
    """Return a segment as a dict for JSON output (pure)."""
    return {
        "journal": status.journal.name,
        "partition": partition,
        "day": segment.day,
        "part": segment.part,
        "form": segment.form,
        "closed": segment.is_closed,
        "first": segment.first,
        "last": segment.last,
        "entries": segment.entries,
        "received_bytes": segment.received_bytes,
        "stored_bytes": segment.stored_bytes,
        "newest_ms": segment.newest_ms,
        "largest": [[key_text(status.journal, key), size] for key, size in segment.largest],
    }


# Events of a key


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """An event of a key, or a range of offsets that the journal does not have.

    Attributes:
        day: UTC day of an event; empty for a gap, and for a time that is on no calendar.
        value: Value as produced, or decoded to JSON if it is framed by a schema registry; None for a tombstone, and if it was too
            large to be kept.
        size: Size of the value as produced.
        remark: Of a gap: why; of an event: why its value is not shown, or why it is not in the folded record.
        changed: Of an event of a folded record: names that it changed; None: unknown.
    """

    is_gap: bool
    partition: int
    first: int
    last: int
    day: str = ""
    at_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    size: int = 0
    remark: str = ""
    changed: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class KeyEvents:
    """Some events of a key.

    Attributes:
        next: Cursor after them, as :attr:`.JournalPage.next`; empty for events of a folded record.
        is_whole: Whether there are no others at present.
        remarks: What is missing and why, one sentence each.
    """

    events: tuple[KeyEvent, ...]
    next: str = ""
    is_whole: bool = True
    remarks: tuple[str, ...] = ()


def key_event(found: Entry | Gap) -> KeyEvent:
    """Return an entry or a gap as an event of its key (pure)."""
    if isinstance(found, Gap):
        return KeyEvent(True, found.partition, found.first, found.last, remark=REASONS.get(found.why, found.why))
    value, remark = found.value, ""
    if found.too_large is not None:
        value, remark = None, f"too large to be kept: {found.too_large:,} bytes"
    elif found.decoded is not None:
        value = encode(found.decoded)
    elif found.undecoded:
        remark = f"not decoded: {escaped(found.undecoded)}"
    size = found.too_large if found.too_large is not None else len(found.value or b"")
    return KeyEvent(
        False,
        found.partition,
        found.offset,
        found.offset,
        _day_or_nothing(found.at_ms),
        found.at_ms,
        found.key,
        value,
        size,
        remark,
    )


def _day_or_nothing(at_ms: int) -> str:
    try:
        return day_of(at_ms) if at_ms >= 0 else ""
    except OverflowError:  # producers choose the times of records
        return ""


def check_begin(begin: str, now_ms: int) -> None:
    """Check where reading is to start; a CursorError says what is valid (pure)."""
    parse_start(begin, now_ms)


def _members(journal: JournalSettings, key: str | None) -> tuple[bytes, ...]:
    return (UNKEYED,) if key is None else keys_meant(journal, key)


def typed_key(journal: JournalSettings, key: bytes) -> tuple[str | None, bool]:
    """Return a stored key as it is typed, and whether typing it finds its events; None: events without a key (pure)."""
    text = key_text(journal, key)
    if text is None:
        return None, True
    typed = text if journal.is_by_record_key else shown_key(text)
    return typed, bool(typed) and key in keys_meant(journal, typed)


async def events_of_key(
    settings: Settings, journal: JournalSettings, key: str | None, begin: str, now_ms: int, *, most: int, max_bytes: int
) -> KeyEvents:
    """Read events of a key from a start on; at a removed event, continue at the first stored one.

    Args:
        key: Key as typed, see :func:`.keys_meant`; None: events without a key.
        begin: Where to start, see :func:`.parse_start`.
        most: Maximum number of entries and gaps.
        max_bytes: No further entry is read after this many bytes.

    Raises:
        CursorError: ``begin`` is invalid.
        TryAgainError: Redis does not answer.
        ConfigurationError: It rejects the connection.
    """
    keys, start = _members(journal, key), parse_start(begin, now_ms)
    async with JournalReader(settings, journal.name) as reader:
        try:
            page = await reader.page(keys, start, limit=most, max_bytes=max_bytes, from_floor=True)
        except REDIS_ERRORS as error:
            raise await why_unreachable(settings.redis, error) from error
    floors, fault, unread = begin_text(page.floors), key_fault(journal, settings.limits, keys), ", ".join(map(str, page.unread))
    remarks = (
        f"{fault}." if fault else "", f"The journal {floors}." if floors else "",
        f"Not read yet by a worker, or lost by Redis: partition {unread} of {journal.source}." if unread else "",
    )  # fmt: skip
    return KeyEvents(tuple(map(key_event, page.items)), page.next, page.is_caught_up, tuple(filter(None, remarks)))


async def events_of_record(settings: Settings, journal: JournalSettings, key: str | None, fold_id: str, *, most: int) -> KeyEvents:
    """Read the events of a folded record, with what each changed.

    Raises:
        ConfigurationError: The fold id is invalid, or the journal does not have the events of its fold.
        TryAgainError: Redis does not answer.
    """
    events: list[KeyEvent] = []
    async with aclosing(raw_events(settings, journal, _members(journal, key), parse_fold_id(fold_id))) as items:
        async for found in items:
            if len(events) == most:
                return KeyEvents(tuple(events), is_whole=False, remarks=(f"Only the first {most} are shown.",))
            if isinstance(found, Gap):
                events.append(key_event(found))
            else:
                changed = None if found.rejected else found.changed
                events.append(replace(key_event(found.entry), remark=found.rejected, changed=changed))
    return KeyEvents(tuple(events))


# Removal of segments


def check_day(text: str, now_ms: int) -> str:
    """Return a UTC day, such as ``2026-08-20``, after a check that it is one and not in the future."""
    try:
        day = day_of(begin_of(text))
    except ValueError as error:
        raise ConfigurationError([f"{text!r} is not a UTC day: write one as in {DAY_EXAMPLE}"]) from error
    if day != text or day > day_of(now_ms):
        fault = f"{text!r} is still to come" if day == text else f"{text!r} is not a UTC day"
        raise ConfigurationError([f"{fault}: write one as in {DAY_EXAMPLE}, at most today"])
    return day


def segments_before(status: JournalStatus, day: str) -> dict[int, list[Segment]]:
    """Map each partition to its segments of days before ``day``, the oldest first; a segment that still grows is omitted (pure)."""
    found: dict[int, list[Segment]] = {}
    for number, shard in status.shards.items():
        segments = () if shard is None else shard.segments
        for position, segment in enumerate(segments):
            if segment.day >= day or not (segment.is_closed or position < len(segments) - 1):
                break
            found.setdefault(number, []).append(segment)
    return found


async def drop_segments(
    settings: Settings, journal: JournalSettings, chosen: Mapping[int, Sequence[Segment]], on_dropped: Callable[[Segment], None]
) -> None:
    """Remove the oldest segments of a journal, one partition after another.

    The command claims each partition, which fences its worker. The worker then claims the partition again, possibly before all
    segments are removed; in this case the command claims it once more.

    Args:
        chosen: Segments to remove in each partition, the oldest first.

    Raises:
        TryAgainError: Redis does not answer or has lost the state of a partition, or a worker keeps claiming a partition. The call
            may be repeated.
    """
    async with redis_of(settings) as redis:
        scripts = JournalScripts(redis)
        statuses = await statuses_of(redis, settings.app_id, journal)
        for number, segments in chosen.items():
            status = statuses.get(number)
            if status is None:
                continue
            keys = journal_keys(settings.app_id, journal.name, journal.source, number)
            store = JournalStore(scripts, keys, secrets.token_hex(8), "journal drop")
            await _drop_in(store, number, status.partitions, segments, on_dropped)


async def _drop_in(
    store: JournalStore, partition: int, partitions: int, segments: Sequence[Segment], on_dropped: Callable[[Segment], None]
) -> None:
    left, rejected = list(segments), 0
    while rejected < MAX_CLAIMS:
        if await store.claim("", partitions) is None:
            raise TryAgainError(f"Redis has lost partition {partition} meanwhile: repeat the command once a worker has read it")
        try:
            while left:
                if await store.drop(left[0].first):
                    on_dropped(left[0])
                left, rejected = left[1:], 0
        except FencedError:
            rejected += 1
        else:
            return
    raise TryAgainError(f"a worker has taken partition {partition} back {rejected} times meanwhile: repeat the command")
