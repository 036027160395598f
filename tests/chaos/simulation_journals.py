"""What journals must hold in a simulation: every event of a range of the log, in segments that are what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from streams_app.delivery.group_consumer import Committed
from streams_app.delivery.producer import Outgoing
from streams_app.journal.core.block import DamagedBlockError, decode
from streams_app.journal.core.entry import Row, row_of
from streams_app.journal.store.keys import JournalKeys
from streams_app.settings import JournalSettings, Limits
from tests.chaos.simulation_kafka import PARTITIONS
from tests.chaos.simulation_ledger import marks_in
from tests.virtual_loop import LoopClock

if TYPE_CHECKING:
    from tests.chaos.simulation import World

Rows = dict[tuple[bytes, int], Row]
"""Key and offset → the row."""


@dataclass(frozen=True, slots=True)
class Part:
    """A segment as Redis has it.

    Attributes:
        first: Its first offset.
        last: Its last one: before the next segment, or the fence.
        about: What it says of itself.
        rows: Rows within its range.
        is_damaged: Whether a block of it cannot be decoded.
    """

    first: int
    last: int
    about: Mapping[str, Any]
    rows: Rows
    is_damaged: bool

    @property
    def is_over(self) -> bool:
        """Whether it says that nothing is appended any more."""
        return bool(self.about["is_closed"])


@dataclass(frozen=True, slots=True)
class State:
    """A shard as Redis has it.

    Attributes:
        meta: Its marks.
        fence: Highest offset that is kept.
        firsts: First offsets of all segments, those above the fence, too.
        parts: Segments up to the fence, in their order.
        named: Keys of blocks that are named.
        blocks: Keys of blocks that there are.
        is_staged: Whether a segment is being packed.
    """

    meta: Mapping[str, bytes]
    fence: int
    firsts: list[int]
    parts: list[Part]
    named: set[str]
    blocks: set[str]
    is_staged: bool

    @property
    def floor(self) -> int:
        """First offset that is kept."""
        return self.firsts[0] if self.firsts else self.fence + 1

    @property
    def stored_bytes(self) -> int:
        """What all segments say that they take."""
        return sum(part.about["stored_bytes"] for part in self.parts)


@dataclass(slots=True)
class JournalModel:
    """One journal of a schedule.

    Attributes:
        world: The schedule.
        journal: Its settings.
        keys: Of its shard.
        state: What Redis had after the last script; None: nothing, or nobody knows.
        appended: Scripts that have appended something.
        packed: Scripts that have swapped packed blocks in.
        dropped: Scripts that have dropped a segment.
        fences: Every fence it has had.
    """

    world: World
    journal: JournalSettings
    keys: JournalKeys
    state: State | None = None
    appended: int = 0
    packed: int = 0
    dropped: int = 0
    fences: set[int] = field(default_factory=set)
    _rows: dict[int, Row] = field(default_factory=dict)
    _damaged: set[bytes] = field(default_factory=set)

    # ---- what the log says

    def row(self, offset: int) -> Row | None:
        """What must be kept of an offset that was read."""
        entry = self.world.log.entries[offset]
        if entry is None:
            return None
        if offset not in self._rows:
            self._rows[offset] = row_of(entry, self.journal, Limits())[0]
        return self._rows[offset]

    def expected(self, first: int, last: int) -> Rows:
        """What must be kept of a range."""
        rows = [row for offset in range(first, last + 1) if (row := self.row(offset)) is not None]
        return {row[:2]: row for row in rows}

    # ---- what Redis has

    def now(self) -> State | None:
        """The shard as it is now."""
        pipe: Any = self.world.server.client.pipeline(transaction=False)
        prefix = self.keys.blocks_prefix
        pipe.hgetall(self.keys.meta).hgetall(self.keys.about).zrange(self.keys.segments, 0, -1).keys(f"{prefix}*")
        marks, of_segments, segments, keys = pipe.execute()
        meta = {name.decode(): value for name, value in marks.items()}
        if "fence" not in meta or "clock" not in meta:
            return None
        fence = int(meta["fence"])
        staged = msgpack.unpackb(of_segments.pop(b"staged", b"\x90"), raw=True)
        about = {int(first): _about(value) for first, value in of_segments.items()}
        firsts = [int(first) for first in segments]
        if missing := set(firsts) - about.keys():
            self.world.report_fault("about", f"{self.journal.name} lacks what the segments of {missing} are")
            return None
        up_to = [first for first in firsts if first <= fence]
        lasts = [*(first - 1 for first in up_to[1:]), fence][: len(up_to)]
        for first in up_to:
            pipe.zrange(f"{prefix}{first}:{about[first]['generation']}", 0, -1)
        parts = [
            self._part(first, last, about[first], members)
            for first, last, members in zip(up_to, lasts, pipe.execute(), strict=True)
        ]
        named = {f"{first}:{one['generation']}" for first, one in about.items()}
        named |= {f"{staged[0].decode()}:{generation.decode()}" for generation in staged[1:]}
        blocks = {key.decode().removeprefix(prefix) for key in keys}
        return State(meta, fence, firsts, parts, named, blocks, bool(staged))

    def _part(self, first: int, last: int, about: Mapping[str, Any], members: Sequence[bytes]) -> Part:
        rows: Rows = {}
        is_damaged = False
        for member in members:
            try:
                found = decode(member)
            except DamagedBlockError:
                is_damaged = True
                if member not in self._damaged:
                    self.world.report_fault("damaged", f"{self.journal.name} has a block in {first} that cannot be decoded")
                continue
            for row in found:
                if rows.setdefault(row[:2], row) != row:
                    self.world.report_fault("rows", f"{self.journal.name} has two rows {row[:2]}")
        return Part(first, last, about, {place: row for place, row in rows.items() if first <= place[1] <= last}, is_damaged)

    # ---- faults

    def damage(self, first: bytes, generation: bytes) -> None:
        """Memory of Redis is damaged: a byte of a block changes."""
        client, rng = self.world.server.client, self.world.rng
        blocks = f"{self.keys.blocks_prefix}{first.decode()}:{generation.decode()}"
        member: Any = client.zrandmember(blocks)
        if member is None:
            return
        at = rng.randrange(len(member) - 4, len(member))
        changed = member[:at] + bytes([member[at] ^ rng.randint(1, 255)]) + member[at + 1 :]
        self._damaged.add(changed)
        client.zrem(blocks, member)
        client.zadd(blocks, {changed: 0})

    def forget(self) -> None:
        """Redis is about to lose something."""
        self.state = None

    # ---- what happens

    def on_script(self, name: str, args: Mapping[str, Any], reply: Any) -> None:
        """A script was run that may change the state."""
        before, after = self.state, self.now()
        self.state = after
        if after is None:
            return
        self.fences.add(after.fence)
        for fault in self._faults(after):
            self.world.report_fault("state", f"{self.journal.name} after {name}: {fault}")
        if name == "claim":
            self._check_claim(before, after, reply)
        elif before is not None and before.meta["token"] == after.meta["token"] and reply[0] != b"already":
            check = {"append": self._check_append, "swap": self._check_swap, "drop": self._check_drop}.get(name)
            for fault in check(before, after, args) if check is not None else ():
                self.world.report_fault(name, f"{self.journal.name}: {fault}")
        self.appended += name == "append"
        self.packed += name == "swap"
        self.dropped += name == "drop"

    def _faults(self, state: State) -> Iterator[str]:
        if unnamed := state.blocks - state.named:
            yield f"nobody names the blocks {unnamed}"
        days = [(part.about["day"], part.about["part"]) for part in state.parts]
        if sorted(set(days)) != days:
            yield f"the days are {days}"
        if not self.world.mix.dying:
            lasts = [part.about["last"] for part in state.parts]
            if lasts != [part.last for part in state.parts]:
                yield f"segments end at {lasts}, the next ones begin at {state.firsts}, the fence is {state.fence}"
            if state.firsts and state.firsts[-1] > state.fence:
                yield f"a segment begins at {state.firsts[-1]}, the fence is {state.fence}"
        for part in state.parts:
            if part.about["form"] == "gap":
                if self.world.log.start <= part.last:
                    yield f"{part.first}-{part.last} are a gap, the log begins at {self.world.log.start}"
                continue
            expected = self.expected(part.first, part.last)
            missing, more = expected.keys() - part.rows.keys(), part.rows.keys() - expected.keys()
            differing = [place for place in expected.keys() & part.rows.keys() if expected[place] != part.rows[place]]
            if (missing and not part.is_damaged) or more or differing:
                yield f"{part.first}-{part.last} lacks {sorted(missing)}, has {sorted(more)}, {differing} differ"

    def _check_claim(self, before: State | None, after: State, reply: Any) -> None:
        name = self.journal.name
        if after.firsts and after.firsts[-1] > after.fence:
            self.world.report_fault("claim", f"{name} has a segment above the fence: {after.firsts}, {after.fence}")
        if after.is_staged:
            self.world.report_fault("claim", f"{name} has staged blocks")
        if reply[0] == b"new":
            young = [at for at in range(self.world.log.start, after.fence + 1) if self._is_young(at)]
            if young:
                self.world.report_fault("claim", f"{name} begins behind {young}, which are younger than it keeps")
        if before is None or reply[0] == b"new":
            return
        if (before.floor, before.fence, before.meta["clock"]) != (after.floor, after.fence, after.meta["clock"]):
            self.world.report_fault("claim", f"{name} was {before.floor}-{before.fence}, is {after.floor}-{after.fence}")

    def _is_young(self, offset: int) -> bool:
        entry = self.world.log.entries[offset]
        return entry is not None and entry.timestamp + self.journal.keep_ms >= LoopClock().now_ms()

    def _check_append(self, before: State, after: State, args: Mapping[str, Any]) -> Iterator[str]:
        first, fence = int(args["first"]), int(args["fence"])
        if before.floor != after.floor:
            yield f"the floor was {before.floor}, is {after.floor}"
        for part in before.parts:
            if part.first == first and (part.is_over or part is not before.parts[-1]):
                yield f"{part.first} is over, and is appended to"
        entries = [entry for entry in self.world.log.entries[fence + 1 : after.fence + 1] if entry is not None]
        clock_ms, now_ms = int(after.meta["clock"]), LoopClock().now_ms()
        if clock_ms > now_ms or clock_ms < int(before.meta["clock"]):
            yield f"the clock was {int(before.meta['clock'])}, is {clock_ms}, it is {now_ms}"
        newest_ms = max([int(before.meta["clock"]), *(entry.timestamp for entry in entries)])
        until = sum(readable_ms < clock_ms for readable_ms in self.world.log.readable_ms)
        if clock_ms > newest_ms and fence + 1 < until:
            yield f"the clock is {clock_ms}, records were up to {newest_ms}, and {fence + 1}-{until - 1} were unread then"

    def _check_swap(self, before: State, after: State, args: Mapping[str, Any]) -> Iterator[str]:
        was = {part.first: part for part in before.parts}
        if before.firsts != after.firsts:
            yield f"segments were {before.firsts}, are {after.firsts}"
        for part in after.parts:
            if part.rows != was[part.first].rows:
                yield f"{part.first} had {len(was[part.first].rows)} rows, has {len(part.rows)}"
            if part.first == int(args["first"]) and len(part.rows) != part.about["entries"]:
                yield f"{part.first} has {len(part.rows)} rows and says {part.about['entries']}"

    def _check_drop(self, before: State, after: State, args: Mapping[str, Any]) -> Iterator[str]:
        if before.firsts == after.firsts:
            return
        oldest = before.parts[0]
        if before.firsts[1:] != after.firsts or oldest.first != int(args["first"]):
            yield f"segments were {before.firsts}, are {after.firsts}"
        if len(before.parts) == 1 and not oldest.is_over:
            yield f"{oldest.first} was open"
        is_old = oldest.about["newest_ms"] + self.journal.keep_ms < LoopClock().now_ms()
        if not is_old and before.stored_bytes <= self.journal.share(PARTITIONS):
            yield f"{oldest.first} is neither old nor too much: {before.stored_bytes}"

    def on_commit(self, at: int) -> None:
        """The coordinator has taken a commit, which is to be no further than what was appended."""
        if at > max([self.world.log.start, *(fence + 1 for fence in self.fences)]):
            self.world.report_fault("commit", f"{self.journal.name} committed {at}, appended are {sorted(self.fences)}")

    # ---- the end

    def unfinished(self) -> list[str]:
        """What is still to be done once nothing happens any more; empty where all is done."""
        state, now_ms, journal = self.now(), LoopClock().now_ms(), self.journal
        if state is None or state.fence + 1 < self.world.log.end:
            return [f"{journal.name} is filed up to {state and state.fence}"]
        found = []
        for part in state.parts:
            if part.about["newest_ms"] + journal.keep_ms + 3_000 < now_ms:
                found.append(f"{part.first} is too old")
            if part.is_over and part.about["form"] == "raw" and not part.is_damaged:
                found.append(f"{part.first} is not packed")
        if state.is_staged and not self._damaged:
            found.append("blocks are staged")
        if state.parts and not state.parts[-1].is_over and state.parts[-1].about["day"] < day_of(now_ms - 2_000):
            found.append(f"the day of {state.parts[-1].first} is over")
        largest = max((part.about["stored_bytes"] for part in state.parts), default=0)
        if state.stored_bytes > journal.share(PARTITIONS) + largest:
            found.append(f"{state.stored_bytes} bytes are too much")
        return found


@dataclass(slots=True)
class JournalLedger:
    """All journals of a schedule, as the world tells what happens to them.

    Attributes:
        models: By name.
        records: Scripts that have appended something.
        highest: Journal → highest mark ever committed.
    """

    models: Mapping[str, JournalModel]
    records: int = 0
    highest: dict[str, int] = field(default_factory=dict)

    def on_record(self, record: Outgoing) -> None:
        """Journals send nothing."""

    def on_known_loss(self, name: str, first: int, last: int, highest: Mapping[str, int]) -> None:
        """A worker says what retention has taken."""

    def on_loss(self, name: str) -> None:
        """Redis is about to lose a journal."""
        self.models[name].forget()

    def on_commit(self, before: Committed | None, mark: Committed, claimed_at: int) -> None:
        """The coordinator has taken a commit."""
        for name, at in marks_in(mark).items():
            self.highest[name] = max(at, self.highest.get(name, 0))
            self.models[name].on_commit(at)


DAY_MS = 3_000
"""A day of the schedules."""


def day_of(time_ms: int) -> str:
    """The day of a moment; texts in the order of days."""
    return f"{time_ms // DAY_MS:012d}"


def _about(value: bytes) -> dict[str, Any]:
    about = {name.decode(): found for name, found in msgpack.unpackb(value, raw=True).items()}
    return {**about, **{name: about[name].decode() for name in ("day", "form", "generation")}}
