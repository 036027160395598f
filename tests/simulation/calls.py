"""Checks the calls, dead letters and commits of a simulated subscriber from outside."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import offsets_in
from streams_app.delivery.producer import OutgoingRecord
from streams_app.subscribers.state.offset_metadata import decoded
from streams_app.subscribers.state.offset_tracker import NOTHING
from tests.simulation.claims import ClaimOf, DoneUnder
from tests.simulation.kafka import Log
from tests.simulation.ledger import positions_in
from tests.simulation.worker import CURRENT

if TYPE_CHECKING:
    from tests.simulation.world import World

NAME = "ship"
ATTEMPTS = 4
FATES = {3: "fails twice", 7: "always fails", 11: "is rejected", 13: "hangs", 17: "kills", 26: "fails twice"}


def fate_of(offset: int) -> str:
    """Return the outcome of an event, which is the same in each schedule."""
    return FATES.get(offset % 47, "is done")


class CallLedger:
    """The calls, dead letters and commits of a subscriber.

    Attributes:
        done: Offsets whose function has returned.
        done_under: The same by claim.
        dead_letters: Offset → reason of its dead letter.
        lost: Offsets that retention removed, as reported by a claim.
        calls: Offset → attempt numbers, as passed to the function.
        records: Number of events that are done or have a dead letter.
        highest: Name → highest low watermark ever committed.
        attempts: Number of failures after which an event becomes a dead letter.
        killer: Dead-letter reason of an event that kills its process.
        hanging: Dead-letter reasons of an event that never ends.
        behind: Number of commits after which a commit must include the events done under its claim: its contents are determined
            when the previous commit has been answered.
    """

    attempts = ATTEMPTS
    killer = "crashed"
    hanging: AbstractSet[str] = frozenset({"timed-out"})
    behind = 1

    def __init__(self, log: Log, world: World) -> None:
        self._log = log
        self._world = world
        self.done: set[int] = set()
        self.done_under = DoneUnder(self.behind)
        self.dead_letters: dict[int, str] = {}
        self.lost: set[int] = set()
        self.calls: dict[int, list[int]] = {}
        self.running: dict[str, set[int]] = {}
        self.highest: dict[str, int] = {}
        self.last_by_key: dict[tuple[str, bytes], int] = {}

    @property
    def records(self) -> int:
        """Number of finished events."""
        return len(self.done | self.dead_letters.keys())

    def is_finished(self, offset: int) -> bool:
        """Whether an offset requires no more work."""
        return self._log.entries[offset] is None or offset in self.done or offset in self.dead_letters or offset in self.lost

    def check_call(self, claim: ClaimOf, offset: int) -> None:
        """Check that an event that succeeded runs again only under another claim."""
        if self.done_under.has(claim, offset):
            self._world.report_fault("repeated", f"{offset} is called again under the claim under which it was done")

    def check_order(self, offset: int, key: bytes | None) -> None:
        """Check that an event is called only if all earlier events of its key are finished."""
        entries = self._log.entries[:offset]
        behind = [entry.offset for entry in entries if entry is not None and entry.key == key]
        if key and (unfinished := [at for at in behind if not self.is_finished(at)]):
            self._world.report_fault("order", f"{offset} is called before {unfinished} of its key")

    def on_record(self, record: OutgoingRecord) -> None:
        """Handle a dead letter that the broker has appended, acknowledged or not."""
        headers = {name: value.decode(errors="replace") for name, value in record.headers}
        offset, reason, fate = int(headers["source-offset"]), headers["reason"], fate_of(int(headers["source-offset"]))
        expected = {"always fails": {"failed"}, "is rejected": {"rejected"}, "hangs": self.hanging, "kills": {self.killer}}
        if reason not in expected.get(fate, set()):
            if not self.is_excused(reason):
                self._world.report_fault("dead letter", f"{offset}, which {fate}, became a dead letter for {reason}")
        # An attempt whose process died counts, and the event runs again all the same.
        most = self.attempts if self._world.mix.is_calm and not self._world.counts.get("killed") else 100
        if reason in ("failed", "timed-out") and not self.attempts <= int(headers["attempts"]) <= most:
            self._world.report_fault("dead letter", f"{offset} became a dead letter after {headers['attempts']} attempts")
        self.dead_letters[offset] = reason

    def is_excused(self, reason: str) -> bool:
        """Whether any event may have become a dead letter for this reason."""
        # An event that runs alone when its process is killed from outside, or considered dead, looks like the cause; in a frozen
        # process, all events exceed their time. A Redis that was rolled back has former crash counts.
        faults = {"crashed": {"crash", "zombie", "freeze", "rollback"}, "timed-out": {"zombie", "freeze"}}
        return bool(faults.get(reason, set()) & self._world.counts.keys())

    def on_loss(self, name: str) -> None:
        """Handle a loss of Redis: attempts are counted from 0 again, and nothing else may depend on it."""

    def on_known_loss(self, name: str, first: int, last: int, highest_at_claim: dict[str, int]) -> None:
        """Handle a report that retention removed these offsets, except the finished ones."""
        if last >= self._log.start or first < highest_at_claim.get(name, 0):
            committed = highest_at_claim.get(name, 0)
            self._world.report_fault(
                "false-loss", f"{first}-{last}, the log begins at {self._log.start}, committed up to {committed}"
            )
        self.lost.update(range(first, last + 1))

    def on_commit(self, before: PartitionCommit | None, commit: PartitionCommit, claimed_at: int) -> None:
        """Check a commit that the coordinator has accepted."""
        offset = positions_in(commit)[NAME]
        # A late commit cannot be distinguished from a newer one; events begin by commits that were answered.
        if before is not None and offset < before.offset and "overtaken" not in self._world.mix.faults:
            self._world.report_fault("back", f"went back from {before.offset} to {offset}")
        if open_below := [at for at in range(offset) if not self.is_finished(at)]:
            self._world.report_fault("commit", f"committed up to {offset}, {open_below} are not finished")
        self._check_metadata(offset, metadata_in(commit))
        self.highest[NAME] = max(offset, self.highest.get(NAME, 0))

    def _check_metadata(self, offset: int, text: str) -> None:
        """Check that the metadata of a commit names exactly the events that its claim has finished."""
        metadata = decoded(text, offset, self._log.end)
        if metadata is None and text:  # a claim that has not read the metadata of an offset set by hand commits it unchanged
            self._world.report_fault("metadata", f"that of offset {offset} is unreadable")
        finished = (NOTHING if metadata is None else metadata.above).finished
        for run in finished:
            if unfinished := [at for at in range(*run) if not self.is_finished(at)]:
                self._world.report_fault("metadata", f"names {unfinished} as finished")
        omitted = self.done_under.committed(CURRENT.get().claim, offset, finished)
        if omitted and "overtaken" not in self._world.mix.faults:
            self._world.report_fault(
                "metadata", f"that of offset {offset} omits {omitted}, which were done {self.behind} commits before"
            )


def metadata_in(commit: PartitionCommit) -> str:
    """Return the commit metadata of the only processor."""
    found = offsets_in(commit) or {}
    return found[NAME].metadata if NAME in found else ""
