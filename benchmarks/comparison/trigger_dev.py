"""What Trigger.dev does with bursts of events, and what a fold does."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmarks.comparison.cases import Cases, numbers, reasons, seconds, send, tester

TRIGGER = "https://trigger.dev/changelog/debounced-task-runs"
TRIGGER_PULL = "https://github.com/triggerdotdev/trigger.dev/pull"

CASES = Cases("Trigger.dev")


@CASES.add(
    "more triggers of a key", TRIGGER, "push the waiting run back instead of creating another one", "same",
    "`quiet_period`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2, 3, every="4s")

    assert [] == kit.records
    kit.advance("4s")
    assert [[1, 2, 3]] == numbers(kit)


@CASES.add(
    "mode `leading`, the default", TRIGGER, "the run waits, and has the payload of the first trigger", "same",
    '`keep = {"*" = "first"}`: the first value of each name',
)  # fmt: skip
def _() -> None:
    kit = tester("5s", keep={"*": "first"}, changed="payload")
    for version in (1, 2, 3):
        kit.send({"key": "a", "payload": {"version": version}})
    kit.advance("9s")

    assert [{"version": 1}] == [record.value["payload"] for record in kit.records]


@CASES.add("mode `trailing`", TRIGGER, "the run has the payload of the last trigger", "same", '`keep = "last"`')
def _() -> None:
    kit = tester("5s", keep="last", changed="payload")
    for version in (1, 2, 3, 4, 5):
        kit.send({"key": "a", "payload": {"version": version}})
    kit.advance("9s")

    assert [{"version": 5}] == [record.value["payload"] for record in kit.records]


@CASES.add(
    "`maxDelay`", f"{TRIGGER_PULL}/2984",
    "with 5 s and at most 30 s, triggers every 2 s run 30 s after the first one", "same", "`max_hold`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_hold="30s")
    send(kit, *range(16), every="2s")

    assert (["max_hold"], True) == (reasons(kit), 30 <= seconds(kit)[0] <= 31)


@CASES.add(
    "a delay of 12 h", f"{TRIGGER_PULL}/4521",
    "made a run of each trigger, by a hidden limit of one hour, until a fix", "same",
    "there is no hidden limit: a `quiet_period` beyond the default of `max_hold` is an error that says so",
)  # fmt: skip
def _() -> None:
    kit = tester("12h", max_hold="2d")
    send(kit, 1, 2, 3, every="11h")
    kit.advance("2h")

    assert [[1, 2, 3]] == numbers(kit)


@CASES.add(
    "a `maxDelay` that can never work", f"{TRIGGER_PULL}/4521", "rejected instead of ignored, since a fix", "same",
    "`max_hold` below `quiet_period` is an error of the settings",
)  # fmt: skip
def _() -> None:
    with pytest.raises(ValidationError, match="max_hold must not be shorter than quiet_period"):
        tester("10m", max_hold="5m")


@CASES.add(
    "the scope of a key", TRIGGER, "a key belongs to its task", "same", "a group belongs to its fold",
)  # fmt: skip
def _() -> None:
    kits = [tester("5s", name="f"), tester("5s", name="g")]
    for kit, number in zip(kits, (1, 2), strict=True):
        send(kit, number, every="9s")

    assert [[[1]], [[2]]] == list(map(numbers, kits))


@CASES.add(
    "an event that comes twice", f"{TRIGGER_PULL}/2794", "an idempotency key is checked before the debounce key",
    "same", '`dedupe_by = "id"`: the second one is ignored while the group is open. After the record, it begins the next group',
)  # fmt: skip
def _() -> None:
    kit = tester(dedupe_by="id")
    for _ in range(2):
        kit.send({"key": "a", "n": 1, "id": "e1"})
        kit.advance("4m")
    kit.advance("1m")
    kit.send({"key": "a", "n": 1, "id": "e1"})
    kit.advance("6m")

    assert ([[1], [1]], 1) == (numbers(kit), kit.duplicates)
