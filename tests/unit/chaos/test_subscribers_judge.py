"""The judge of the subscriber chaos test detects every violation of a delivery guarantee."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.subscribers.catalogue import hangs_at_first
from tests.chaos.subscribers.judge import KEYS, Produced, Row, reasons_of, verdict

SENT = {(0, 0): 10, (0, 1): 10 + KEYS, (0, 2): 200}
"""Two events of one customer, and another one that is published twice in some cases."""

GOOD = ("0 begin", "0 end", "1 begin", "1 end", "2 begin", "2 end")


def row(text: str, pid: int = 1) -> Row:
    offset, phase = text.split()
    number = SENT.get((0, int(offset)), 200)
    return Row(pid, "s", f"order-{number}", number, 0, int(offset), 1, phase)


def wrong(
    calls: Sequence[str], guarantee: str = "yes", dead_letters: Sequence[int] = (), *, committed: int = 3, kept_data: bool = True,
    is_ordered: bool = False, is_twice: bool = False,
) -> list[str]:  # fmt: skip
    sent = SENT | ({(0, 3): 200} if is_twice else {})
    produced = Produced(sent, {number: f"order-{number}" for number in sent.values()})
    found = verdict(
        guarantee, produced, [row(text) for text in calls], {(0, offset): ["interrupted"] for offset in dead_letters},
        {0: committed}, {0: len(sent)}, kept_data=kept_data, is_ordered=is_ordered,
    )  # fmt: skip
    return [fault.partition(",")[0] for fault in found.wrong]


@pytest.mark.parametrize("guarantee", ["yes", "unknown", "no"])
def test_judge_accepts_exactly_one_call_for_each_event(guarantee: str) -> None:
    assert [] == wrong(GOOD, guarantee, is_ordered=True)


def test_event_neither_finished_nor_dead_lettered_is_missing() -> None:
    assert ["1 neither done nor a dead letter"] == wrong(GOOD[:4])


def test_dead_letter_finishes_an_event() -> None:
    assert [] == wrong([*GOOD[:4], "2 begin"], "no", dead_letters=[2])


def test_dead_letter_with_a_reason_its_event_cannot_have_is_found() -> None:
    assert ["1 dead letters for a reason that their events do not have"] == wrong([*GOOD[:4], "2 begin"], dead_letters=[2])


def test_started_event_needs_an_end_or_a_dead_letter() -> None:
    assert ["1 neither done nor a dead letter", "1 begun without an end or a dead letter"] == wrong([*GOOD[:4], "2 begin"], "no")


def test_uncommitted_offset_is_found() -> None:
    assert ["partition 0: 2 of 3 is committed"] == wrong(GOOD, committed=2)


@pytest.mark.parametrize(
    ("guarantee", "kept_data", "faults"),
    [
        ("yes", True, []),
        ("unknown", True, ["1 called twice for an id"]),
        ("unknown", False, []),
        ("no", False, ["1 called twice for a record", "1 called twice for an id"]),
    ],
)
def test_second_call_for_one_record_breaks_the_guarantee(guarantee: str, kept_data: bool, faults: list[str]) -> None:
    assert faults == wrong([*GOOD, "2 begin", "2 end"], guarantee, kept_data=kept_data)


@pytest.mark.parametrize(
    ("guarantee", "faults"), [("yes", []), ("unknown", ["1 called twice for an id"]), ("no", ["1 called twice for an id"])]
)
def test_event_published_twice_is_called_once(guarantee: str, faults: list[str]) -> None:
    assert faults == wrong([*GOOD, "3 begin", "3 end"], guarantee, committed=4, is_twice=True)


def test_second_copy_of_a_finished_event_need_not_be_called() -> None:
    assert [] == wrong(GOOD, "no", committed=4, is_twice=True)


def test_second_copy_must_be_called_without_deduplication() -> None:
    assert ["1 neither done nor a dead letter"] == wrong(GOOD, committed=4, is_twice=True)


def test_attempt_that_reports_no_effect_may_be_retried() -> None:
    assert [] == wrong(["0 begin", "0 retry", *GOOD], "no")


def test_event_that_starts_before_its_predecessor_ends_breaks_the_order() -> None:
    calls = ["0 begin", "1 begin", "0 end", "1 end", *GOOD[4:]]

    assert ["1 begun before the previous event of the key was finished"] == wrong(calls, is_ordered=True)
    assert [] == wrong(calls)


@pytest.mark.parametrize(
    ("guarantee", "fate", "expected"),
    [
        ("yes", "kills", {"crashed"}),
        ("no", "kills late", {"interrupted", "finished-late"}),
        ("yes", "hangs", {"timed-out"}),
        ("unknown", "hangs", {"timed-out", "interrupted", "finished-late"}),
        ("yes", "blocks", set()),
        ("no", "hangs at first", {"timed-out", "interrupted", "finished-late"}),
        ("yes", "hangs at first", set()),
    ],
)
def test_each_fate_has_its_dead_letters(guarantee: str, fate: str, expected: set[str]) -> None:
    assert expected == reasons_of(guarantee, 200, Produced(fates={200: fate}))


@pytest.mark.parametrize(("subscriber", "expected"), [("thread_deduplicated", "hangs at first"), ("deduplicated", "")])
def test_hangs_once_fate_applies_to_one_subscriber_only(subscriber: str, expected: str) -> None:
    produced = Produced(fates={200: hangs_at_first("thread_deduplicated"), 201: "kills"})

    assert {200: expected, 201: "kills"} == produced.as_in(subscriber).fates
