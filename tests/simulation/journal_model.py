"""The required contents of journals in a simulation: every event of a range, in segments that match their descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.producer import OutgoingRecord
from streams_app.journal.core.block import DamagedBlockError, decode
from streams_app.journal.core.entry import Row, headers_with_key, row_of
from streams_app.journal.store.keys import JournalKeys
from streams_app.settings import JournalSettings, Limits
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.kafka import PARTITIONS
from tests.simulation.ledger import positions_in

if TYPE_CHECKING:
    from tests.simulation.world import World

Rows = dict[tuple[bytes, int], Row]
"""Key and offset → the row."""


@dataclass(frozen=True, slots=True)
class Part:
    """A segment in Redis.

    Attributes:
        first: First offset.
        last: Last offset: the one before the next segment, or the fence.
        about: Description of the segment.
        rows: Rows within its range.
        is_damaged: Whether one of its blocks cannot be decoded.
    """

    first: int
    last: int
    about: Mapping[str, Any]
    rows: Rows
    is_damaged: bool

    @property
    def is_closed(self) -> bool:
        """Whether it is described as closed."""
        return bool(self.about["is_closed"])


@dataclass(frozen=True, slots=True)
class State:
    """A shard in Redis.

    Attributes:
        meta: Token, fence and clock.
        fence: Highest stored offset.
        firsts: First offsets of all segments, including those above the fence.
        parts: Segments up to the fence, in order.
        named: Keys of blocks that an entry names.
        blocks: Keys of existing blocks.
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
        """First stored offset."""
        return self.firsts[0] if self.firsts else self.fence + 1

    @property
    def stored_bytes(self) -> int:
        """Number of bytes of all segments, as they are described."""
        return sum(part.about["stored_bytes"] for part in self.parts)


@dataclass(slots=True)
class JournalModel:
    """One journal of a schedule.

    Attributes:
        world: The schedule.
        journal: Settings of the journal.
        keys: Keys of its shard.
        state: State in Redis after the last script; None if there was none, or if it is unknown.
        appended: Number of *append* scripts.
        packed: Number of *swap* scripts.
        dropped: Number of *drop* scripts.
        fences: Every fence so far.
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

    # ---- required contents

    def row(self, offset: int) -> Row | None:
        """Return the required row of an offset that was read."""
        entry = self.world.log.entries[offset]
        if entry is None:
            return None
        if offset not in self._rows:
            row, _ = row_of(entry, self.journal, Limits())
            headers = headers_with_key(row.key, row.headers, entry.key, is_by_record_key=self.journal.is_by_record_key)
            self._rows[offset] = row._replace(headers=headers)
        return self._rows[offset]

    def expected(self, first: int, last: int) -> Rows:
        """Return the required rows of a range."""
        rows = [row for offset in range(first, last + 1) if (row := self.row(offset)) is not None]
        return {row[:2]: row for row in rows}

    # ---- state in Redis

    def now(self) -> State | None:
        """Return the current state of the shard."""
        pipe: Any = self.world.server.client.pipeline(transaction=False)
        prefix = self.keys.blocks_prefix
        pipe.hgetall(self.keys.meta).hgetall(self.keys.about).zrange(self.keys.segments, 0, -1).keys(f"{prefix}*")
        fields, descriptions, segments, keys = pipe.execute()
        meta = {name.decode(): value for name, value in fields.items()}
        if "fence" not in meta or "clock" not in meta:
            return None
        fence = int(meta["fence"])
        staged = msgpack.unpackb(descriptions.pop(b"staged", b"\x90"), raw=True)
        about = {int(first): _about(value) for first, value in descriptions.items()}
        firsts = [int(first) for first in segments]
        if missing := set(firsts) - about.keys():
            self.world.report_fault("about", f"{self.journal.name} lacks the descriptions of segments {missing}")
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
        """Change a byte of a block, as damaged memory of Redis would."""
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
        """Handle a loss of data that is about to happen."""
        self.state = None

    # ---- events of the schedule

    def on_script(self, name: str, args: Mapping[str, Any], reply: Any) -> None:
        """Check the state after a script that may have changed it."""
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
            yield f"no entry names the blocks {unnamed}"
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
                self.world.report_fault("claim", f"{name} begins after {young}, which it must keep")
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
            if part.first == first and (part.is_closed or part is not before.parts[-1]):
                yield f"{part.first} is closed, but was appended to"
        entries = [entry for entry in self.world.log.entries[fence + 1 : after.fence + 1] if entry is not None]
        clock_ms, now_ms = int(after.meta["clock"]), LoopClock().now_ms()
        if clock_ms > now_ms or clock_ms < int(before.meta["clock"]):
            yield f"the clock was {int(before.meta['clock'])}, is {clock_ms}, it is {now_ms}"
        newest_ms = max([int(before.meta["clock"]), *(entry.timestamp for entry in entries)])
        until = sum(readable_ms < clock_ms for readable_ms in self.world.log.readable_ms)
        if clock_ms > newest_ms and fence + 1 < until:
            yield f"the clock is {clock_ms}, records were up to {newest_ms}, but {fence + 1}-{until - 1} were unread"

    def _check_swap(self, before: State, after: State, args: Mapping[str, Any]) -> Iterator[str]:
        was = {part.first: part for part in before.parts}
        if before.firsts != after.firsts:
            yield f"segments were {before.firsts}, are {after.firsts}"
        for part in after.parts:
            if part.rows != was[part.first].rows:
                yield f"{part.first} had {len(was[part.first].rows)} rows, has {len(part.rows)}"
            if part.first == int(args["first"]) and len(part.rows) != part.about["entries"]:
                yield f"{part.first} has {len(part.rows)} rows, but is described with {part.about['entries']}"

    def _check_drop(self, before: State, after: State, args: Mapping[str, Any]) -> Iterator[str]:
        if before.firsts == after.firsts:
            return
        oldest = before.parts[0]
        if before.firsts[1:] != after.firsts or oldest.first != int(args["first"]):
            yield f"segments were {before.firsts}, are {after.firsts}"
        if len(before.parts) == 1 and not oldest.is_closed:
            yield f"{oldest.first} was open"
        is_old = oldest.about["newest_ms"] + self.journal.keep_ms < LoopClock().now_ms()
        if not is_old and before.stored_bytes <= self.journal.share(PARTITIONS):
            yield f"{oldest.first} is neither too old nor above the limit: {before.stored_bytes}"

    def on_commit(self, at: int) -> None:
        """Check that a commit is not above the appended offsets."""
        if at > max([self.world.log.start, *(fence + 1 for fence in self.fences)]):
            self.world.report_fault("commit", f"{self.journal.name} committed {at}, appended are {sorted(self.fences)}")

    # ---- the end

    def unfinished(self) -> list[str]:
        """Return the remaining work after the faults; empty if there is none."""
        state, now_ms, journal = self.now(), LoopClock().now_ms(), self.journal
        if state is None or state.fence + 1 < self.world.log.end:
            return [f"{journal.name} is stored up to {state and state.fence}"]
        found = []
        for part in state.parts:
            if part.about["newest_ms"] + journal.keep_ms + 3_000 < now_ms:
                found.append(f"{part.first} is too old")
            if part.is_closed and part.about["form"] == "raw" and not part.is_damaged:
                found.append(f"{part.first} is not packed")
        if state.is_staged and not self._damaged:
            found.append("blocks are staged")
        if state.parts and not state.parts[-1].is_closed and state.parts[-1].about["day"] < day_of(now_ms - 2_000):
            found.append(f"the day of {state.parts[-1].first} has ended")
        largest = max((part.about["stored_bytes"] for part in state.parts), default=0)
        if state.stored_bytes > journal.share(PARTITIONS) + largest:
            found.append(f"{state.stored_bytes} bytes are above the limit")
        return found


@dataclass(slots=True)
class JournalLedger:
    """All journals of a schedule; the world reports the events to it.

    Attributes:
        models: Journals by name.
        records: Number of *append* scripts.
        highest: Journal → highest offset ever committed.
    """

    models: Mapping[str, JournalModel]
    records: int = 0
    highest: dict[str, int] = field(default_factory=dict)

    def on_record(self, record: OutgoingRecord) -> None:
        """Do nothing: journals send no records."""

    def on_known_loss(self, name: str, first: int, last: int, highest: Mapping[str, int]) -> None:
        """Handle a report that retention removed offsets."""

    def on_loss(self, name: str) -> None:
        """Handle a journal that Redis is about to lose."""
        self.models[name].forget()

    def on_commit(self, before: PartitionCommit | None, commit: PartitionCommit, claimed_at: int) -> None:
        """Check a commit that the coordinator has accepted."""
        for name, at in positions_in(commit).items():
            self.highest[name] = max(at, self.highest.get(name, 0))
            self.models[name].on_commit(at)


DAY_MS = 3_000
"""Duration of a day in schedules."""


def day_of(time_ms: int) -> str:
    """Return the day of a time, as a text that is ordered like the days."""
    return f"{time_ms // DAY_MS:012d}"


def _about(value: bytes) -> dict[str, Any]:
    about = {name.decode(): found for name, found in msgpack.unpackb(value, raw=True).items()}
    return {**about, **{name: about[name].decode() for name in ("day", "form", "generation")}}
