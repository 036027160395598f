"""What BullMQ does with bursts of events, and what a fold does."""

from __future__ import annotations

from benchmarks.comparison.cases import Cases, numbers, reasons, send, tester

BULLMQ = "https://docs.bullmq.io/guide/jobs/deduplication"
BULLMQ_ISSUE = "https://github.com/taskforcesh/bullmq/issues"

CASES = Cases("BullMQ")


@CASES.add(
    "simple mode", BULLMQ, "a job is ignored until the one with its id has completed or failed", "not done",
    "a fold does not wait for its consumer: an event after the record begins the next group. A subscriber with `ordered` handles "
    "one record of a group after the other",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, every="9s")
    send(kit, 2)

    assert ([[1]], [b"a"]) == (numbers(kit), kit.open_groups)


@CASES.add(
    "throttle mode", BULLMQ, "the first job runs, and those that come within `ttl` after it are ignored", "differs",
    "`leading = true`: the first event makes a record at once, and those after it are folded, not ignored",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", leading=True)
    send(kit, 1, 2)
    kit.advance("9s")
    send(kit, 3)
    kit.advance("9s")

    assert ([[1], [2], [3]], ["leading", "quiet", "leading"]) == (numbers(kit), reasons(kit))


@CASES.add(
    "debounce mode", BULLMQ, "of ten jobs with `replace` and `extend`, the last one runs, `white 10`", "same",
    '`keep = "last"`',
)  # fmt: skip
def _() -> None:
    kit = tester("5s", keep="last", changed="data")
    for number in range(1, 11):
        kit.send({"key": "customValue", "data": {"color": f"white {number}"}})
    kit.advance("9s")

    assert [{"color": "white 10"}] == [record.value["data"] for record in kit.records]


@CASES.add(
    "jobs added while one is active", BULLMQ, "with `keepLastIfActive`, the last of them runs afterwards", "differs",
    "all of them are folded into the next record",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, every="9s")
    send(kit, 2, 3, 4)
    kit.advance("9s")

    assert [[1], [2, 3, 4]] == numbers(kit)


@CASES.add(
    "the last trigger must not be lost", f"{BULLMQ_ISSUE}/3427",
    "simple and throttle mode ignore jobs that are added while one is active", "differs",
    "every event is in exactly one group, and every group is emitted",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_events=3)
    send(kit, *range(20), every="2s")
    kit.advance("9s")

    assert list(range(20)) == [number for found in numbers(kit) for number in found]


@CASES.add(
    "what was ignored or replaced", BULLMQ, "an event `deduplicated` for each such job", "differs",
    "the record has the number of its events and their offsets; `streams-app events explain` finds the record of an event",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", keep="last", changed="data")
    for number in range(3):
        kit.send({"key": "a", "data": {"n": number}})
    kit.advance("9s")

    assert [(3, "f:s:0:0-2")] == [(record.value["fold"]["events"], record.fold_id) for record in kit.records]


@CASES.add(
    "a waiting job is removed", BULLMQ, "`job.remove` ends the deduplication of its id", "same",
    "`streams-app groups drop`: no record, and the next event opens the group again",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2)

    assert 2 == kit.drop(b"a")
    send(kit, 3)
    kit.advance("9s")
    assert [[3]] == numbers(kit)
