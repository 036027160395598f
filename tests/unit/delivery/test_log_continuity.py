"""Whether a log is the one that was read, and from where each kind of reader reads it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams_app.delivery.fingerprints import GONE, OTHER, Fingerprint, common_end, thinned
from streams_app.delivery.log_continuity import (
    Action,
    LogVerdict,
    Policy,
    PresentLog,
    StoredPosition,
    continuity_of,
    is_comparable,
)
from streams_app.folding.agents.claim import policy_of as fold_policy
from streams_app.journal.agents.beginning import policy_of as journal_policy
from streams_app.live.agents.processor import policy_of as view_policy
from streams_app.read_store.sync.processor import policy_of as store_policy
from streams_app.subscribers.guarantees.restored_position import policy_of as subscriber_policy
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_log_continuity import LOG_CONTINUITY

POLICIES = [make("x") for make in (fold_policy, subscriber_policy, journal_policy, view_policy, store_policy)]
READ = (Fingerprint(40, 1),)
BEGIN, END = 10, 100


@pytest.mark.parametrize(
    ("stored_id", "present_id", "read", "common", "verdicts"),
    [
        # Verdicts: nothing is unusual; the end is below; the reader was reset; both.
        ("a", "b", READ, None, "RECREATED RECREATED RECREATED RECREATED"),
        ("a", "b", (), None, "RECREATED RECREATED RECREATED RECREATED"),
        ("a", "a", READ, 30, "TRUNCATED TRUNCATED TRUNCATED TRUNCATED"),
        ("", "a", READ, 30, "TRUNCATED TRUNCATED TRUNCATED TRUNCATED"),
        ("a", "a", READ, None, "SAME SAME TRUNCATED TRUNCATED"),
        ("", "a", READ, None, "SAME SAME TRUNCATED TRUNCATED"),
        ("a", "a", (), None, "SAME SHORTER UNCOMPARED WENT_BACK"),
        ("", "a", (), None, "SAME SHORTER UNIDENTIFIED RECREATED"),
        ("a", "", (), None, "SAME SHORTER UNIDENTIFIED RECREATED"),
        ("a", "", READ, 30, "SAME SHORTER UNIDENTIFIED RECREATED"),
        ("", "", (), None, "SAME SHORTER UNIDENTIFIED RECREATED"),
    ],
)
def test_verdict_follows_from_ids_then_fingerprints_then_the_end(
    stored_id: str, present_id: str, read: tuple[Fingerprint, ...], common: int | None, verdicts: str
) -> None:
    cases = product((False, True), (END, END + 1))
    found = [
        continuity_of(StoredPosition(to, stored_id, read), PresentLog(present_id, BEGIN, END, was_reset), common).verdict.name
        for was_reset, to in cases
    ]

    assert verdicts == " ".join(found)


@pytest.mark.parametrize(("common", "expected"), [(0, BEGIN), (30, 30), (END + 5, END)])
def test_truncated_log_is_read_from_the_common_end_within_its_bounds(common: int, expected: int) -> None:
    assert expected == continuity_of(StoredPosition(150, "a", READ), PresentLog("a", BEGIN, END), common).offset


@pytest.mark.parametrize("begin", [BEGIN, 60])
def test_log_of_a_reset_reader_is_the_same_if_all_that_was_read_is_there_or_was_removed(begin: int) -> None:
    read_to = 41 if begin == BEGIN else 50

    assert (LogVerdict.SAME, read_to) == continuity_of(StoredPosition(read_to, "a", READ), PresentLog("a", begin, END, True))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.reader)
def test_policy_decides_each_verdict_and_says_what_to_do_if_it_refuses(policy: Policy) -> None:
    assert set(LogVerdict) == set(policy.actions)
    assert (Action.REJECT in policy.actions.values()) == policy.advice.startswith("Run `streams-app reset --")


@dataclass
class MadeLog:
    """A log and the only reader of it; a record is its number, a transaction marker is None."""

    has_ids: bool
    topic: int = 1
    begin: int = 0
    entries: list[int | None] = field(default_factory=list)
    appended: int = 0
    read_to: int = 0
    has_read: set[int] = field(default_factory=set)
    fingerprints: list[Fingerprint] = field(default_factory=list)
    was_reset: bool = False
    was_truncated: bool = False

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def topic_id(self) -> str:
        return f"t{self.topic}" if self.has_ids else ""

    def append(self, count: int) -> None:
        for _ in range(count):
            self.appended += 1
            self.entries.append(self.appended)

    def add_markers(self, count: int) -> None:
        self.entries += [None] * count

    def retain(self, count: int) -> None:
        self.begin = min(self.end, self.begin + count)

    def truncate(self, count: int) -> None:
        self.was_truncated = True
        del self.entries[max(self.begin, self.end - count) :]

    def recreate(self, count: int) -> None:
        self.topic, self.begin, self.entries = self.topic + 1, 0, []

    def fetch(self, count: int) -> None:
        """Fetch once: a client whose position is beyond the end is reset."""
        self.was_reset = self.was_reset or self.read_to > self.end

    def read(self, count: int) -> None:
        for offset in range(max(self.begin, self.read_to), self.end):
            if (record := self.entries[offset]) is not None:
                self.has_read.add(record)
                self.fingerprints = list(thinned([*self.fingerprints, Fingerprint(offset, record)]))
        self.read_to = max(self.read_to, self.end)

    async def checksum_at(self, offset: int) -> int:
        record = self.entries[offset] if offset < self.end else None
        return GONE if offset < self.begin else OTHER if record is None else record

    def missed(self, policy: Policy, stored: StoredPosition) -> tuple[set[int], list[LogVerdict]]:
        """Return the records that the reader will never read, and the verdicts of its claims."""
        verdicts: list[LogVerdict] = []
        while True:
            log = PresentLog(self.topic_id, self.begin, self.end, self.was_reset)
            common = finished(self.common(stored)) if is_comparable(stored, log.topic_id) else None
            verdict, offset = continuity_of(stored, log, common)
            verdicts.append(verdict)
            action = policy.actions[verdict]
            if action is Action.CONTINUE and offset > self.end and not self.was_reset:
                self.was_reset = True  # it seeks beyond the end, and is claimed again
                continue
            if action is Action.REJECT:
                return set(), verdicts
            first = self.begin if action is Action.RESTART else offset
            unread = {record for record in self.entries[self.begin : first] if record is not None} - self.has_read
            return unread, verdicts

    async def common(self, stored: StoredPosition) -> int | None:
        return await common_end(stored.fingerprints, self.checksum_at)


def finished(step: Coroutine[Any, Any, int | None]) -> int | None:
    """Run a coroutine that never waits."""
    try:
        step.send(None)
    except StopIteration as ended:
        found: int | None = ended.value
        return found
    raise AssertionError("it waits")


Change = tuple[str, int]
GROWING = ("append", "add_markers", "retain", "read")
CHANGES = ("append", "add_markers", "retain", "truncate", "recreate", "fetch")


def check(grown: Sequence[Change], changed: Sequence[Change], has_ids: bool, has_fingerprints: bool, policy: Policy) -> None:
    """Check the rule with a log that grew while it was read, and then grew, lost its end, or was created again."""
    log = MadeLog(has_ids)
    for name, count in grown:
        getattr(log, name)(count)
    read = tuple(log.fingerprints) if has_fingerprints else ()
    stored = StoredPosition(log.read_to, log.topic_id, read)
    for name, count in changed:
        getattr(log, name)(count)
    is_reset, ends_below = log.was_reset, log.end < log.read_to
    missed, verdicts = log.missed(policy, stored)

    restarts = {policy.actions[one] for one in (LogVerdict.UNCOMPARED, LogVerdict.UNIDENTIFIED)} == {Action.RESTART}
    # Markers have no fingerprints: if only markers were lost, the log must be shorter than what was read, or the reader reset.
    is_shown = has_ids and read and not (log.was_truncated and read[-1].checksum in log.entries and not is_reset)
    if is_shown or ends_below or (is_reset and restarts):
        assert not missed
    if has_ids:
        assert (LogVerdict.RECREATED in verdicts) == (log.topic > 1)
    if not {name for name, _ in changed} - set(GROWING):
        assert [LogVerdict.SAME] == verdicts


def drawn(names: Sequence[str]) -> st.SearchStrategy[list[Change]]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(1, 6)), max_size=8)


@settings(max_examples=200, database=None, derandomize=True, deadline=None)
@given(drawn(GROWING), drawn(CHANGES), st.booleans(), st.booleans(), st.sampled_from(POLICIES))
def test_no_record_is_missed_and_a_topic_that_was_not_deleted_never_counts_as_recreated(
    grown: list[Change], changed: list[Change], has_ids: bool, has_fingerprints: bool, policy: Policy
) -> None:
    check(grown, changed, has_ids, has_fingerprints, policy)


def check_all() -> None:
    """Check all short sequences of changes; the log ends with a record or with a marker."""
    changes = [one for count in range(4) for one in product(CHANGES, repeat=count)]
    for markers, names, has_ids, has_fingerprints, policy in product((0, 3), changes, (False, True), (False, True), POLICIES):
        grown = [("append", 5), ("add_markers", markers), ("read", 1)]
        check(grown, [(name, 2) for name in names], has_ids, has_fingerprints, policy)


def test_rule_keeps_its_laws_for_all_short_sequences_of_changes() -> None:
    check_all()


@pytest.mark.parametrize("mutant", LOG_CONTINUITY, ids=lambda mutant: mutant.name)
def test_broken_rule_misses_records_or_accuses_a_topic(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        check_all()
