"""What Windmill does with bursts of events, and what a fold does."""

from __future__ import annotations

from benchmarks.comparison.cases import Cases, numbers, reasons, send, tester

WINDMILL = "https://www.windmill.dev/docs/core_concepts/job_debouncing"
WINDMILL_PULL = "https://github.com/windmill-labs/windmill/pull"

CASES = Cases("Windmill")


@CASES.add(
    "arguments that are accumulated", WINDMILL, '`["a"]`, `["b", "c"]` and `["d"]` become one job with all four',
    "differs", "the events stay apart in the list of `events`. As `changed`, the names are joined, each once",
)  # fmt: skip
def _() -> None:
    events, names = tester(fields=["items"]), tester(keep="names", changed="items")
    for items in (["a"], ["b", "c"], ["d"], ["a"]):
        for kit in (events, names):
            kit.send({"key": "k", "items": items})
            kit.advance("1s")
    for kit in (events, names):
        kit.advance("6m")

    (listed,), (joined,) = events.records, names.records
    assert [["a"], ["b", "c"], ["d"], ["a"]] == [event["items"] for event in listed.value["events"]]
    assert ["a", "b", "c", "d"] == joined.value["items"]


@CASES.add(
    "a maximum of debounces", f"{WINDMILL_PULL}/8307", "with 2, five calls become `[1, 2]`, `[3, 4]` and `[5]`",
    "same", "`max_events = 2`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_events=2)
    send(kit, 1, 2, 3, 4, 5)
    kit.advance("1m")

    assert [[1, 2], [3, 4], [5]] == numbers(kit)


@CASES.add(
    "a burst of 2 000", WINDMILL, "with at most 500 and 5 s, four jobs", "same", "`max_events = 500`: four records",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_events=500)
    for number in range(2_000):
        kit.send({"key": "a", "n": number})
    kit.advance("1m")

    assert [500] * 4 == list(map(len, numbers(kit)))


@CASES.add(
    "events every 2 s, a delay of 5 s", WINDMILL, "the job never runs without a maximum time", "same",
    "`max_hold` runs out",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_hold="60s")
    send(kit, *range(60), every="2s")

    assert ["max_hold"] == sorted(set(reasons(kit)))
    assert {30, 31} >= set(map(len, numbers(kit)))


@CASES.add("a key of one argument", WINDMILL, "`$args[user_id]`, whatever the other arguments are", "same", "`group_key`")
def _() -> None:
    kit = tester(group_key="user_id", fields=["n"])
    for number in (1, 2):
        kit.send({"user_id": 7, "n": number, "other": number})
    kit.advance("6m")

    assert [[1, 2]] == numbers(kit)


@CASES.add(
    "no key is given", WINDMILL, "all arguments are the key, so events that differ are not joined", "differs",
    "`group_key` must be given. An event without it becomes a dead letter",
)  # fmt: skip
def _() -> None:
    kit = tester()
    kit.send({"n": 1})

    assert (["no-group"], []) == ([letter.reason for letter in kit.dead_letters], kit.open_groups)


@CASES.add(
    "a preprocessor", WINDMILL, "debouncing is decided on its output", "same",
    "in Python, `decode` makes the event from the bytes, before it is grouped",
)  # fmt: skip
def _() -> None:
    kit = tester(decode=lambda value: dict(zip(("key", "n"), (value.decode()[0], int(value[1:])), strict=True)))
    kit.send(b"a1")
    kit.send(b"a2")
    kit.advance("6m")

    assert [[1, 2]] == numbers(kit)


@CASES.add(
    "an event while the job runs", f"{WINDMILL_PULL}/9780",
    "was lost with accumulated arguments, until a fix; begins a new window since", "same",
    "begins the next fold of the group; what has been emitted no longer changes",
)  # fmt: skip
def _() -> None:
    kit = tester()
    send(kit, 1, 2)
    kit.advance("6m")
    send(kit, 3)
    kit.advance("6m")

    assert [[1, 2], [3]] == numbers(kit)
