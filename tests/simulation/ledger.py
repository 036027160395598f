"""Checks records, dead letters and commits of simulated folds from outside."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from streams_app.delivery.clocks import FRESH_MS
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.producer import OutgoingRecord
from streams_app.fold import Fold
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.drop_request import DroppedGroup
from streams_app.quiet_period import QuietPeriod
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.closing import Arrival, Emitted
from tests.simulation.closing import faults as limit_faults
from tests.simulation.kafka import PARTITIONS, Log, Record

SLACK_MS = 1_000
AGGREGATES = {"u": "sum", "v": "max", "*": "count"}
_AGGREGATED: dict[str, Callable[[list[int]], int]] = {"sum": sum, "max": max, "count": len}
CLOSING = 2
"""Value of ``m.u`` with which an event closes its group, if the fold has ``close_when``."""


def positions_in(committed: PartitionCommit | None) -> dict[str, int]:
    """Return the position of each fold in a commit, without the number of partitions."""
    metadata: dict[str, Any] = json.loads(committed.metadata) if committed else {}
    return {name: position for name, position in metadata.items() if isinstance(position, int)}


class Ledger:
    """Checks every record, dead letter and commit at the moment the broker takes it.

    Attributes:
        done: Fold → offsets that are in an acknowledged record, in the dead letters, dropped, or reported as known loss.
        highest: Fold → highest position ever committed.
    """

    def __init__(
        self, log: Log, folds: dict[str, Fold], report_fault: Callable[[str, str], None], *, keeps_either: bool = False,
        clocks_differ: bool = False,
    ) -> None:  # fmt: skip
        """Create an empty ledger.

        Args:
            log: Log of the source.
            folds: Folds by name.
            report_fault: Receives the kind and the text of a violation.
            keeps_either: Workers have different settings of ``keep``, and any of them may have emitted a record.
            clocks_differ: Scores may be limited by a wall clock that is behind.
        """
        self._clocks_differ = clocks_differ
        self._log = log
        self._keeps_either = keeps_either
        self._folds = folds
        self._outputs = {fold.output: fold for fold in folds.values()}
        self._report = report_fault
        self.done: dict[str, set[int]] = {name: set() for name in folds}
        self.highest: dict[str, int] = {}
        self.records = self.dead_letters = self.commits = self.known_losses = 0
        self._obliged_from: dict[str, int] = {}
        self._lost_below: dict[str, int] = dict.fromkeys(folds, 0)
        self._scores: dict[str, dict[int, int]] = {fold: {} for fold in folds}
        self._quiet: dict[str, dict[int, int]] = {fold: {} for fold in folds}
        self._known_lost: dict[str, set[int]] = {name: set() for name in folds}
        self._emitted: dict[str, dict[str, tuple[list[int], str, int]]] = {name: {} for name in folds}
        self._low: dict[str, int] = {}
        self._ids: dict[str, dict[int, str]] = {name: {} for name in folds}
        self._contents: dict[str, dict[str, Any]] = {}
        self._drops_requested: set[tuple[str, bytes, int]] = set()
        self._dropped: dict[str, set[int]] = {name: set() for name in folds}

    # ---- events

    def event(self, entry: Record | None) -> dict[str, Any] | None:
        """Return the object in a value; None if there is none."""
        try:
            value = json.loads(entry.value or b"") if entry else None
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def group(self, fold: Fold, entry: Record | None) -> str | None:
        """Return the group of an event; None if the fold must reject it."""
        value = self.event(entry)
        found = value.get(str(fold.group_key)) if value else None
        return found if isinstance(found, str) else None

    def ignored(self, fold: Fold, entry: Record | None) -> bool:
        """Whether an offset needs no outcome."""
        return entry is None or (not entry.value and fold.tombstones == "ignore")

    # ---- output

    def on_record(self, record: OutgoingRecord) -> None:
        """Check a record that the broker has appended, acknowledged or not."""
        headers = {name: value.decode() for name, value in record.headers}
        if record.topic in self._outputs:
            self.records += 1
            self._on_folded(self._outputs[record.topic], record, headers["fold-id"])
        else:
            self.dead_letters += 1
            self._on_dead_letter(self._folds[headers["fold"]], record, int(headers["source-offset"]))

    def _on_dead_letter(self, fold: Fold, record: OutgoingRecord, offset: int) -> None:
        entry = self._log.entries[offset]
        if entry is None or entry.value != record.value or self.group(fold, entry) is not None:
            self._report("invented", f"{fold.name} offset {offset} is not an event that must be rejected")
        self.done[fold.name].add(offset)

    def _on_folded(self, fold: Fold, record: OutgoingRecord, fold_id: str) -> None:
        value = json.loads(record.value or b"")
        first, last = map(int, fold_id.rsplit(":", 1)[1].split("-"))
        if last >= self._log.end:
            self._report("content", f"{fold_id} ends beyond the log")
        entries, group = self._log.entries[first : last + 1], value[str(fold.group_key)]
        covered = self._covered(fold, group, first, entries)
        meta = value.pop("fold")
        reason = meta.pop("reason")
        changed = value[fold.changed_field]
        kept = ("last" if isinstance(changed, dict) else "names") if self._keeps_either else fold.kept
        expected = self._expected(covered, kept)
        found = {"changed": changed, **meta}
        if found != {**expected, "id": fold_id, "name": fold.name} or record.key != group.encode():
            self._report("content", f"{fold_id} has {found}, events {covered} make {expected}")
        # Events that Redis has lost may be folded again and closed for another reason; a record of the same id has the same
        # contents.
        content = {**found, "reason": None if first < self._lost_below[fold.name] else reason}
        self._emitted[fold.name].setdefault(fold_id, (covered, reason, LoopClock().now_ms()))
        former = self._contents.setdefault(fold_id, content)
        if former != content and not (former["reason"] is None or content["reason"] is None):
            kind = "reason" if {**former, "reason": None} == {**content, "reason": None} else "content"
            self._report(kind, f"{fold_id} was {former}, is {content}")
        ids = self._ids[fold.name]
        for offset in covered:
            if offset >= self._lost_below[fold.name] and ids.setdefault(offset, fold_id) != fold_id:
                self._report("twice", f"{fold.name} offset {offset} in {ids[offset]} and {fold_id}")
            if offset >= self._lost_below[fold.name] and offset in self._dropped[fold.name]:
                self._report("dropped", f"{fold_id} has offset {offset}, which was dropped")
        self.done[fold.name].update(covered)

    def _covered(self, fold: Fold, group: str, first: int, entries: Sequence[Record | None]) -> list[int]:
        """Return the offsets of the events of a group, without duplicates, if it was open from the first to the last entry."""
        found: dict[Any, int] = {}
        for offset, entry in enumerate(entries, first):
            if self.group(fold, entry) == group:
                found.setdefault((self.event(entry) or {}).get("i", offset) if fold.dedupe_by else offset, offset)
        return list(found.values())

    def _originals(self, fold: Fold, offset: int) -> list[int]:
        """Return the offsets of earlier events of the same group with the same id, the newest last; none without ``dedupe_by``."""
        entry = self._log.entries[offset]
        event, group = self.event(entry), self.group(fold, entry)
        if not fold.dedupe_by or event is None or group is None:
            return []
        earlier = enumerate(self._log.entries[:offset])
        return [at for at, one in earlier if self.group(fold, one) == group and (self.event(one) or {}).get("i") == event["i"]]

    def _expected(self, covered: list[int], kept: str) -> dict[str, Any]:
        events = [entry for entry in (self._log.entries[offset] for offset in covered) if entry]
        return {
            "changed": self._contents_of([self.event(entry) or {} for entry in events], kept),
            "events": len(covered),
            "first_event_ms": min((entry.timestamp for entry in events), default=0),
            "last_event_ms": max((entry.timestamp for entry in events), default=0),
            "version": PARTITIONS * 2**40 + (covered[-1] if covered else 0),
        }

    @staticmethod
    def _contents_of(events: list[dict[str, Any]], kept: str) -> Any:
        """Return the contents of the record of these events, for each kind of ``keep``."""
        if kept == "events":
            return events
        names: dict[str, Any] = {}
        for event in events:
            names.update(event["m"])
        if kept == "aggregates":
            values = {name: [event["m"][name] for event in events if name in event["m"]] for name in names}
            return {name: _AGGREGATED[AGGREGATES.get(name, AGGREGATES["*"])](values[name]) for name in names}
        return names if kept == "last" else sorted(names)

    def on_drop_requested(self, fold_name: str, member: bytes, first_offset: int) -> None:
        """Handle the request of an operator to drop the fold of a group that begins at this offset."""
        self._drops_requested.add((fold_name, member, first_offset))

    def on_dropped(self, fold_name: str, dropped: DroppedGroup) -> None:
        """Check a dropped group: its drop must have been requested, and none of its events may be in a record.

        A group without events was opened by an early record, which has its event.
        """
        fold, first, last = self._folds[fold_name], dropped.first_offset, dropped.last_offset
        text = f"{fold_name} {dropped.member!r} {first}-{last}"
        if (fold_name, dropped.member, first) not in self._drops_requested:
            self._report("dropped", f"{text} was dropped without a request")
        entries, group = self._log.entries[first : last + 1], dropped.member[1:].decode()
        covered = self._covered(fold, group, first, entries)
        if not dropped.events and fold.leading:
            return
        if len(covered) != dropped.events:
            self._report("dropped", f"{text} had {dropped.events} events, the log has {covered}")
        if emitted := [at for at in covered if at in self._ids[fold_name] and at >= self._lost_below[fold_name]]:
            self._report("dropped", f"{text} was dropped, {emitted} are in records")
        self._dropped[fold_name].update(covered)
        self.done[fold_name].update(covered)

    def on_sealed(self, fold_name: str, sealed: bytes, fence: int, clock_ms: int) -> None:
        """Check sealed groups: the wall clock may not close a group whose next event was in the log before.

        Args:
            fold_name: Name of the fold.
            sealed: Packed entries in a row.
            fence: Highest folded offset.
            clock_ms: Partition clock of the script; it is the wall clock if it is above every folded timestamp.
        """
        if not sealed or clock_ms <= max((entry.timestamp for entry in self._log.entries[: fence + 1] if entry), default=0):
            return
        fold = self._folds[fold_name]
        for entry in SealedGroup.unpack_all(sealed):
            after = max(fence, entry.last_offset) + 1
            waiting = [
                offset
                for offset, event in enumerate(self._log.entries[after : self._log.stable], after)
                if event and event.born_ms < clock_ms - FRESH_MS - SLACK_MS and self.group(fold, event) == entry.member[1:].decode()
            ]
            if fold.dedupe_by:
                waiting = []  # they may be duplicates
            if entry.reason == "quiet" and waiting and not self._is_gap(fold, entry.last_offset, waiting[0]):
                self._report("early", f"{fold_name} {entry.first_offset}-{entry.last_offset} closed, its next event waits")

    def _is_gap(self, fold: Fold, last: int, following: int) -> bool:
        """Whether record time ends a session between two events, with the newest timestamp so far as its clock."""
        scores = [max((event.timestamp for event in self._log.entries[: at + 1] if event), default=0) for at in (last, following)]
        return fold.backlog == "sessions" and scores[1] - scores[0] > fold.quiet_period_ms

    def on_loss(self, fold: str) -> None:
        """Handle a loss of a fold's data: events in the log may be folded a second time, later events may not."""
        self._lost_below[fold] = self._log.end

    def on_refolding(self, fold: str, to: int) -> None:
        """Handle a range in progress that is folded again under another definition: its events may be in a record of each."""
        self._lost_below[fold] = max(self._lost_below[fold], to + 1)

    def on_folding(self, fold: str, offset: int, scores: Iterable[tuple[int, int]]) -> None:
        """Check the scores of a *fold* script.

        Args:
            fold: Name of the fold.
            offset: First offset of the range.
            scores: Offsets with the scores in its arguments. Every owner must give an event of the range the same score.
        """
        self._begin(fold, offset)
        recorded = self._scores[fold]
        for at, score in scores:
            if at >= self._lost_below[fold] and not self._keeps_either and recorded.setdefault(at, score) != score:
                self._report("score", f"{fold} offset {at} was scored {recorded[at]} and then {score}")

    def on_quiet_period(self, fold: str, offsets: Iterable[int], quiet_ms: int) -> None:
        """Check the quiet period of a range, if it sets itself: every owner must use the same for each of its offsets."""
        recorded = self._quiet[fold]
        for at in offsets:
            if at >= self._lost_below[fold] and recorded.setdefault(at, quiet_ms) != quiet_ms:
                self._report("quiet", f"{fold} offset {at} had a quiet period of {recorded[at]} ms and then of {quiet_ms} ms")

    def _begin(self, fold: str, at: int) -> None:
        """Set the offset from which a fold must emit events, by its settings; events removed by retention before are excluded."""
        start = self._log.start if self._folds[fold].start == "earliest" else at
        self._obliged_from.setdefault(fold, min(at, start))

    def on_known_loss(self, fold: str, first: int, last: int, highest_at_claim: dict[str, int]) -> None:
        """Handle a report that retention removed these offsets."""
        self.known_losses += last + 1 - first
        if first < highest_at_claim.get(fold, 0):
            self._report("false-loss", f"{fold} {first}-{last} reported lost, committed up to {highest_at_claim[fold]}")
        if last >= self._log.start:
            self._report("false-loss", f"{fold} {first}-{last} reported lost, the log begins at {self._log.start}")
        self._scores[fold].clear()  # without the lost events, the rest of a range has other scores
        self.done[fold].update(range(first, last + 1))
        self._known_lost[fold].update(range(first, last + 1))

    # ---- commits

    def on_commit(self, before: PartitionCommit | None, commit: PartitionCommit, claimed_at: int) -> None:
        """Check a commit that the coordinator has accepted.

        Args:
            before: Previous commit.
            commit: New commit.
            claimed_at: End of the log when the worker began to claim the partition.
        """
        self.commits += 1
        positions, former = positions_in(commit), positions_in(before)
        if commit.offset != min(positions.values()):
            self._report("commit", f"offset {commit.offset} is not the lowest of {positions}")
        for fold, at in positions.items():
            if fold not in self._obliged_from and self._folds[fold].start == "latest" and not claimed_at <= at <= self._log.stable:
                self._report("start", f"{fold} begins at {at}, the log ended between {claimed_at} and {self._log.stable}")
            self._begin(fold, at)
            if at > (low := self.low(fold)):
                self._report("commit", f"{fold} committed up to {at}, offset {low} is not delivered")
            if at < former.get(fold, 0):
                self._report("back", f"{fold} went back from {former[fold]} to {at}")
            self.highest[fold] = max(at, self.highest.get(fold, 0))
        if lacking := former.keys() - positions.keys():
            self._report("positions", f"positions of {sorted(lacking)} are missing")

    def low(self, fold: str) -> int:
        """Return the lowest offset that needs an outcome and has none."""
        at = self._low.get(fold, 0)
        begin = self._obliged_from.get(fold, 0)
        while at < self._log.end and self.is_settled(fold, at, begin):
            at += 1
        self._low[fold] = at
        return at

    def is_settled(self, fold: str, offset: int, begin: int) -> bool:
        """Whether an offset has its outcome, or needs none."""
        if offset < begin or offset in self.done[fold] or self.ignored(self._folds[fold], self._log.entries[offset]):
            return True
        return any(at in self.done[fold] for at in self._originals(self._folds[fold], offset))

    def check_limits(self, *, is_calm: bool) -> None:
        """Check that groups closed when they had to, see :mod:`tests.simulation.closing`.

        Skip folds whose data Redis has lost. Also skip a fold if retention has removed a part of a range in progress: some of the
        reported offsets are folded then, and the rest of the range has other scores.
        """
        for name, fold in self._folds.items():
            covered_by_all = {offset for covered, _, _ in self._emitted[name].values() for offset in covered}
            if self._lost_below[name] or self._known_lost[name] & covered_by_all or fold.dedupe_by:
                continue
            arrivals = {arrival.offset: arrival for arrival in self._arrivals(fold)}
            records = [
                Emitted([arrivals[offset] for offset in covered], reason, taken_ms)
                for covered, reason, taken_ms in self._emitted[name].values()
            ]
            for fault in limit_faults(fold, records, list(arrivals.values()), is_calm=is_calm):
                self._report("limit", fault)

    def _arrivals(self, fold: Fold) -> Iterator[Arrival]:
        score, is_exact = 0, not self._clocks_differ
        for offset in range(self._obliged_from.get(fold.name, 0), self._log.end):
            entry = self._log.entries[offset]
            group = self.group(fold, entry)
            if entry is None or group is None or offset in self._known_lost[fold.name]:
                continue
            score, is_exact = max(score, entry.timestamp), is_exact and entry.timestamp <= entry.born_ms
            changed = (self.event(entry) or {})["m"]
            closes = fold.close_when is not None and changed.get("u") == CLOSING
            size = len(entry.value or b"") + 1 if fold.keeps_events else 0
            quiet_ms, wanted = fold.quiet_period_ms, (self.event(entry) or {}).get("q")
            if isinstance(fold.quiet_period, QuietPeriod):
                quiet_ms = fold.default_quiet_period_ms if wanted is None else round(wanted * 1000)
            quiet_ms = self._quiet[fold.name].get(offset, quiet_ms)
            readable_ms = self._log.readable_ms[offset]
            yield Arrival(offset, group, score, is_exact, readable_ms, frozenset(changed), closes, size, quiet_ms)

    def check_end(self) -> None:
        """Check after the faults and the drain that every event has an outcome."""
        missing: dict[str, list[int]] = defaultdict(list)
        for fold in self._folds:
            if fold not in self._obliged_from:
                self._report("start", f"{fold} never began")
        for fold, begin in self._obliged_from.items():
            for offset in range(self._log.end):
                if not self.is_settled(fold, offset, begin):
                    missing[fold].append(offset)
            self._check_ignored(self._folds[fold], begin)
        if missing:
            self._report("lost", f"never delivered: {dict(missing)}")

    def _check_ignored(self, fold: Fold, begin: int) -> None:
        """Check that no event was ignored whose group was closed by the events before it."""
        closed = {
            offset: covered[-1]
            for covered, reason, _ in self._emitted[fold.name].values()
            for offset in covered
            if reason in ("max_events", "closed")
        }
        for offset in range(max(begin, self._lost_below[fold.name]), self._log.end):
            originals = [] if offset in self.done[fold.name] else self._originals(fold, offset)
            found = [at for at in originals if at in self.done[fold.name]]
            if found and closed.get(found[-1], offset) < offset:
                self._report("ignored", f"{fold.name} offset {offset}, although the group of {found[-1]} was closed")
