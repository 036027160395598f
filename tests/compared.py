"""What others do with bursts of events, case by case, and what a fold does: facts from their documentation and issues.

Each case runs a fold in the test kit. ``docs/compared.md`` is the table of these cases; ``make docs`` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from pydantic import ValidationError

from streams_app import Fold
from streams_app.fold import QuietPeriod
from streams_app.testing import FoldTester

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "compared.md"
BEGIN, END = "<!-- cases -->", "<!-- /cases -->"

Verdict = Literal["same", "differs", "not done"]

INNGEST_DEBOUNCE = "https://www.inngest.com/docs/guides/debounce"
INNGEST_FLOW = "https://www.inngest.com/docs/durable-execution/flow-control/debounce"
INNGEST_BATCH = "https://www.inngest.com/docs/guides/batching"
INNGEST = "https://github.com/inngest/inngest"
WINDMILL = "https://www.windmill.dev/docs/core_concepts/job_debouncing"
WINDMILL_PULL = "https://github.com/windmill-labs/windmill/pull"
TRIGGER = "https://trigger.dev/changelog/debounced-task-runs"
TRIGGER_PULL = "https://github.com/triggerdotdev/trigger.dev/pull"
BULLMQ = "https://docs.bullmq.io/guide/jobs/deduplication"
BULLMQ_ISSUE = "https://github.com/taskforcesh/bullmq/issues"
SESSIONS = "https://kafka.apache.org/42/javadoc/org/apache/kafka/streams/kstream/SessionWindows.html"
SUPPRESSED = "https://kafka.apache.org/42/javadoc/org/apache/kafka/streams/kstream/Suppressed.html"
SESSION_SOURCE = (
    "https://github.com/apache/kafka/blob/trunk/streams/src/main/java/org/apache/kafka/streams/kstream/internals/"
    "KStreamSessionWindowAggregate.java"
)
KAFKA_PULL = "https://github.com/apache/kafka/pull"


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        project: Whose case it is.
        name: The case in a few words.
        url: Its source.
        theirs: What the other project does.
        verdict: Whether a fold does the same.
        ours: What a fold does, and by which setting.
        run: Shows it in the test kit.
    """

    project: str
    name: str
    url: str
    theirs: str
    verdict: Verdict
    ours: str
    run: Callable[[], None]


CASES: Final[list[Case]] = []


def case(project: str, name: str, url: str, theirs: str, verdict: Verdict, ours: str) -> Callable[[Callable[[], None]], None]:
    """Add a case; the decorated function runs it."""

    def add(run: Callable[[], None]) -> None:
        CASES.append(Case(project, name, url, theirs, verdict, ours, run))

    return add


def tester(quiet_period: str = "5m", **options: Any) -> FoldTester:
    """A fold of whole events by the field ``key``, in the test kit."""
    if "keep" not in options:
        options["keep"] = "events"
    return FoldTester(Fold(**{"name": "f", "source": "s", "group_key": "key", "quiet_period": quiet_period} | options))


def send(kit: FoldTester, *numbers: int, key: str = "a", every: str = "1s") -> None:
    """Produce events with these numbers, some time apart."""
    for number in numbers:
        kit.send({"key": key, "n": number})
        kit.advance(every)


def numbers(kit: FoldTester) -> list[list[int]]:
    """The numbers of the events of each record."""
    return [[event["n"] for event in record.value["events"]] for record in kit.records]


def reasons(kit: FoldTester) -> list[str]:
    """The reason of each record."""
    return [record.value["fold"]["reason"] for record in kit.records]


def seconds(kit: FoldTester) -> list[int]:
    """When each record was emitted, in seconds after the first event of the kit."""
    return [(record.emitted_ms - kit._start_ms) // 1_000 for record in kit.records]


# Inngest


@case(
    "Inngest", "a burst", INNGEST_DEBOUNCE, "one run, once no event has come for `period`", "same", "`quiet_period`: one record",
)  # fmt: skip
def _() -> None:
    kit = tester("5m")
    send(kit, 1, 2, 3, every="1m")

    assert [] == kit.advance("3m")
    kit.advance("2m")
    assert [[1, 2, 3]] == numbers(kit)


@case(
    "Inngest", "an event during the wait", f"{INNGEST}/pull/612",
    "with 5 s, events at 0 s and 3 s run at 8 s: each event restarts the period", "same",
    "`quiet_period`: due 5 s after the last event, emitted with the next `worker.tick`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2, every="3s")
    kit.advance("1m")

    assert ([[1, 2]], True) == (numbers(kit), 8 <= seconds(kit)[0] <= 9)


@case(
    "Inngest", "events that never stop", INNGEST_DEBOUNCE, "`timeout` bounds the wait", "same",
    "`max_hold`, 6 h by default: the wait is never unbounded",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", max_hold="10m")
    send(kit, *range(25), every="1m")

    assert (["max_hold", "max_hold"], 20) == (reasons(kit), sum(map(len, numbers(kit))))


@case("Inngest", "several keys", INNGEST_DEBOUNCE, "each value of `key` has its own period", "same", "`group_key`")
def _() -> None:
    kit = tester("5m")
    send(kit, 1, key="a", every="3m")
    send(kit, 2, key="b", every="3m")

    assert ([[1]], [b"b"]) == (numbers(kit), kit.open_groups)


@case(
    "Inngest", "no key", INNGEST_FLOW, "without `key`, all events of a function share one period", "differs",
    "a fold has a `group_key`; in Python it may be a function that returns a constant, which makes one group per partition",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", group_key=lambda _: "all")
    send(kit, 1, key="a")
    send(kit, 2, key="b")
    kit.advance("6m")

    assert [[1, 2]] == numbers(kit)


@case(
    "Inngest", "what the function receives", INNGEST_FLOW, "the last event, neither the first nor an array of all", "differs",
    'what `keep` says: the changed names, the last value of each (`"last"`), aggregates, or all events',
)  # fmt: skip
def _() -> None:
    kit = tester(keep="last", changed="fields")
    kit.send({"key": "a", "fields": {"name": "x", "age": 1}})
    kit.send({"key": "a", "fields": {"age": 2}})
    kit.advance("6m")

    assert [{"name": "x", "age": 2}] == [record.value["fields"] for record in kit.records]


@case(
    "Inngest", "all events of the window", f"{INNGEST}/issues/3695",
    "asked for (debounce timing, batch payload), open: the function gets the last event alone", "differs",
    '`keep = "events"`: all events in the order of the log, whole or their `fields`',
)  # fmt: skip
def _() -> None:
    kit = tester(fields=["n"])
    send(kit, 1, 2, 3)
    kit.advance("6m")

    assert [[{"n": 1}, {"n": 2}, {"n": 3}]] == [record.value["events"] for record in kit.records]


@case(
    "Inngest", "an event with an older time", f"{INNGEST}/pull/975",
    "ignored: it does not extend the wait, and is not used", "differs",
    "folded: the order of the log counts, and each event extends the wait",
)  # fmt: skip
def _() -> None:
    kit = tester("5m")
    kit.send({"key": "a", "n": 2})
    kit.advance("4m")
    kit.send({"key": "a", "n": 1}, at_ms=kit.now_ms - 600_000)

    assert [] == kit.advance("4m")
    kit.advance("2m")
    assert [[2, 1]] == numbers(kit)


@case(
    "Inngest", "debounce and batching together", INNGEST_DEBOUNCE, "debounce does not work with batched functions", "differs",
    "`quiet_period`, `max_hold`, `max_events` and `max_bytes` apply together; the record names the one that closed it",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", max_events=3)
    send(kit, 1, 2, 3, 4)
    kit.advance("6m")

    assert ([[1, 2, 3], [4]], ["max_events", "quiet"]) == (numbers(kit), reasons(kit))


@case(
    "Inngest", "the length of the period", INNGEST_DEBOUNCE, "1 s to 7 days", "differs",
    "1 ms or more, without an upper limit; `max_hold` must not be shorter. Records are emitted with `worker.tick`",
)  # fmt: skip
def _() -> None:
    kit = tester("30d", max_hold="60d")
    send(kit, 1, 2, every="29d")

    assert [] == kit.records
    kit.advance("2d")
    assert [[1, 2]] == numbers(kit)
    with pytest.raises(ValidationError, match="longer than max_hold"):
        tester("30d")


@case(
    "Inngest", "the first event at once", INNGEST_DEBOUNCE, "not by debounce; rate limiting runs the first event and skips others",
    "differs", "`leading = true`: a record of the first event at once, and the events that follow make the next record",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", leading=True)
    send(kit, 1, 2, 3)

    assert ([[1]], ["leading"]) == (numbers(kit), reasons(kit))
    kit.advance("6m")
    assert ([[1], [2, 3]], ["leading", "quiet"]) == (numbers(kit), reasons(kit))


@case("Inngest", "a full batch", INNGEST_BATCH, "runs when it has `maxSize` events", "same", "`max_events`")
def _() -> None:
    kit = tester("5m", max_events=2)
    send(kit, 1, 2, 3)

    assert ([[1, 2]], ["max_events"]) == (numbers(kit), reasons(kit))


@case(
    "Inngest", "a batch that is not full", INNGEST_BATCH, "runs `timeout` after its first event, however many came since", "same",
    "`max_hold` as long as `quiet_period`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_hold="5s")
    send(kit, 1, 2, 3, every="2s")

    assert ([[1, 2, 3]], ["max_hold"], True) == (numbers(kit), reasons(kit), 5 <= seconds(kit)[0] <= 6)


@case(
    "Inngest", "large events in a batch", INNGEST_BATCH, "runs early when its events exceed 10 MiB", "differs",
    "`max_bytes`, 500 kB by default and 700 kB at most: the group closes before the event that would exceed it",
)  # fmt: skip
def _() -> None:
    kit = tester(max_bytes=1_000)
    for text in ("x" * 600, "y" * 600):
        kit.send({"key": "a", "text": text})

    assert ["max_bytes"] == reasons(kit)
    assert [b"a"] == kit.open_groups


@case(
    "Inngest", "an event that must not wait", INNGEST_BATCH, "an event for which `if` is false skips the batch and runs at once",
    "differs", "no event passes its group by. Two folds with a `source_filter` each do it, one of them with `max_events = 1`",
)  # fmt: skip
def _() -> None:
    waits = tester(source_filter=lambda event: event["free"])
    hurries = tester(source_filter=lambda event: not event["free"], max_events=1)
    for free in (True, False, True):
        for kit in (waits, hurries):
            kit.send({"key": "a", "n": 1, "free": free})

    assert ([], [[1]]) == (numbers(waits), numbers(hurries))


@case(
    "Inngest", "the order of events", f"{INNGEST}/issues/3211",
    "no guarantee for payloads that are sent in bulk; asked for, open", "differs", "the order of the log, within a partition",
)  # fmt: skip
def _() -> None:
    kit = tester()
    kit.catch_up([(kit.now_ms - 1_000_000 - number, {"key": "a", "n": number}) for number in range(50)])
    kit.flush()

    assert [list(range(50))] == numbers(kit)


@case(
    "Inngest", "batches and idempotency", INNGEST_BATCH, "batching cannot be combined with idempotency", "differs",
    "each record has an id that depends on the offsets of its events: a record that is sent again has the same one",
)  # fmt: skip
def _() -> None:
    kits = [tester(), tester()]
    for kit in kits:
        send(kit, 1, 2)
        kit.advance("6m")
        send(kit, 3)
        kit.advance("6m")

    assert ["f:s:0:0-1", "f:s:0:2-2"] == [record.fold_id for record in kits[0].records] == [r.fold_id for r in kits[1].records]


# Windmill


@case(
    "Windmill", "arguments that are accumulated", WINDMILL, '`["a"]`, `["b", "c"]` and `["d"]` become one job with all four',
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


@case(
    "Windmill", "a maximum of debounces", f"{WINDMILL_PULL}/8307", "with 2, five calls become `[1, 2]`, `[3, 4]` and `[5]`",
    "same", "`max_events = 2`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_events=2)
    send(kit, 1, 2, 3, 4, 5)
    kit.advance("1m")

    assert [[1, 2], [3, 4], [5]] == numbers(kit)


@case(
    "Windmill", "a burst of 2 000", WINDMILL, "with at most 500 and 5 s, four jobs", "same", "`max_events = 500`: four records",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_events=500)
    for number in range(2_000):
        kit.send({"key": "a", "n": number})
    kit.advance("1m")

    assert [500] * 4 == list(map(len, numbers(kit)))


@case(
    "Windmill", "events every 2 s, a delay of 5 s", WINDMILL, "the job never runs without a maximum time", "same",
    "`max_hold` runs out",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_hold="60s")
    send(kit, *range(60), every="2s")

    assert ["max_hold"] == sorted(set(reasons(kit)))
    assert {30, 31} >= set(map(len, numbers(kit)))


@case("Windmill", "a key of one argument", WINDMILL, "`$args[user_id]`, whatever the other arguments are", "same", "`group_key`")
def _() -> None:
    kit = tester(group_key="user_id", fields=["n"])
    for number in (1, 2):
        kit.send({"user_id": 7, "n": number, "other": number})
    kit.advance("6m")

    assert [[1, 2]] == numbers(kit)


@case(
    "Windmill", "no key is given", WINDMILL, "all arguments are the key, so events that differ are not joined", "differs",
    "`group_key` must be given. An event without it becomes a dead letter",
)  # fmt: skip
def _() -> None:
    kit = tester()
    kit.send({"n": 1})

    assert (["no-group"], []) == ([letter.reason for letter in kit.dead_letters], kit.open_groups)


@case(
    "Windmill", "a preprocessor", WINDMILL, "debouncing is decided on its output", "same",
    "in Python, `decode` makes the event from the bytes, before it is grouped",
)  # fmt: skip
def _() -> None:
    kit = tester(decode=lambda value: dict(zip(("key", "n"), (value.decode()[0], int(value[1:])), strict=True)))
    kit.send(b"a1")
    kit.send(b"a2")
    kit.advance("6m")

    assert [[1, 2]] == numbers(kit)


@case(
    "Windmill", "an event while the job runs", f"{WINDMILL_PULL}/9780",
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


# Trigger.dev


@case(
    "Trigger.dev", "more triggers of a key", TRIGGER, "push the waiting run back instead of creating another one", "same",
    "`quiet_period`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2, 3, every="4s")

    assert [] == kit.records
    kit.advance("4s")
    assert [[1, 2, 3]] == numbers(kit)


@case(
    "Trigger.dev", "mode `leading`, the default", TRIGGER, "the run waits, and has the payload of the first trigger", "differs",
    'no `keep` has the first values alone; `keep = "events"` has the first event in front',
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2, 3)
    kit.advance("9s")

    assert [1] == [found[0] for found in numbers(kit)]


@case("Trigger.dev", "mode `trailing`", TRIGGER, "the run has the payload of the last trigger", "same", '`keep = "last"`')
def _() -> None:
    kit = tester("5s", keep="last", changed="payload")
    for version in (1, 2, 3, 4, 5):
        kit.send({"key": "a", "payload": {"version": version}})
    kit.advance("9s")

    assert [{"version": 5}] == [record.value["payload"] for record in kit.records]


@case(
    "Trigger.dev", "`maxDelay`", f"{TRIGGER_PULL}/2984",
    "with 5 s and at most 30 s, triggers every 2 s run 30 s after the first one", "same", "`max_hold`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_hold="30s")
    send(kit, *range(16), every="2s")

    assert (["max_hold"], True) == (reasons(kit), 30 <= seconds(kit)[0] <= 31)


@case(
    "Trigger.dev", "a delay of 12 h", f"{TRIGGER_PULL}/4521",
    "made a run of each trigger, by a hidden limit of one hour, until a fix", "same",
    "there is no hidden limit: a `quiet_period` beyond the default of `max_hold` is an error that says so",
)  # fmt: skip
def _() -> None:
    kit = tester("12h", max_hold="2d")
    send(kit, 1, 2, 3, every="11h")
    kit.advance("2h")

    assert [[1, 2, 3]] == numbers(kit)


@case(
    "Trigger.dev", "a `maxDelay` that can never work", f"{TRIGGER_PULL}/4521", "rejected instead of ignored, since a fix", "same",
    "`max_hold` below `quiet_period` is an error of the settings",
)  # fmt: skip
def _() -> None:
    with pytest.raises(ValidationError, match="max_hold must not be shorter than quiet_period"):
        tester("10m", max_hold="5m")


@case(
    "Trigger.dev", "the scope of a key", TRIGGER, "a key belongs to its task", "same", "a group belongs to its fold",
)  # fmt: skip
def _() -> None:
    kits = [tester("5s", name="f"), tester("5s", name="g")]
    for kit, number in zip(kits, (1, 2), strict=True):
        send(kit, number, every="9s")

    assert [[[1]], [[2]]] == list(map(numbers, kits))


@case(
    "Trigger.dev", "an event that comes twice", f"{TRIGGER_PULL}/2794", "an idempotency key is checked before the debounce key",
    "not done", "both are folded: a fold does not know ids of events. Changed names and last values are the same, counts are not",
)  # fmt: skip
def _() -> None:
    kit = tester()
    send(kit, 1, 1)
    kit.advance("6m")

    assert [[1, 1]] == numbers(kit)


# BullMQ


@case(
    "BullMQ", "simple mode", BULLMQ, "a job is ignored until the one with its id has completed or failed", "not done",
    "a fold does not wait for its consumer: an event after the record begins the next group",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, every="9s")
    send(kit, 2)

    assert ([[1]], [b"a"]) == (numbers(kit), kit.open_groups)


@case(
    "BullMQ", "throttle mode", BULLMQ, "the first job runs, and those that come within `ttl` after it are ignored", "differs",
    "`leading = true`: the first event makes a record at once, and those after it are folded, not ignored",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", leading=True)
    send(kit, 1, 2)
    kit.advance("9s")
    send(kit, 3)
    kit.advance("9s")

    assert ([[1], [2], [3]], ["leading", "quiet", "leading"]) == (numbers(kit), reasons(kit))


@case(
    "BullMQ", "debounce mode", BULLMQ, "of ten jobs with `replace` and `extend`, the last one runs, `white 10`", "same",
    '`keep = "last"`',
)  # fmt: skip
def _() -> None:
    kit = tester("5s", keep="last", changed="data")
    for number in range(1, 11):
        kit.send({"key": "customValue", "data": {"color": f"white {number}"}})
    kit.advance("9s")

    assert [{"color": "white 10"}] == [record.value["data"] for record in kit.records]


@case(
    "BullMQ", "jobs added while one is active", BULLMQ, "with `keepLastIfActive`, the last of them runs afterwards", "differs",
    "all of them are folded into the next record",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, every="9s")
    send(kit, 2, 3, 4)
    kit.advance("9s")

    assert [[1], [2, 3, 4]] == numbers(kit)


@case(
    "BullMQ", "the last trigger must not be lost", f"{BULLMQ_ISSUE}/3427",
    "simple and throttle mode ignore jobs that are added while one is active", "differs",
    "every event is in exactly one group, and every group is emitted",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_events=3)
    send(kit, *range(20), every="2s")
    kit.advance("9s")

    assert list(range(20)) == [number for found in numbers(kit) for number in found]


@case(
    "BullMQ", "what was ignored or replaced", BULLMQ, "an event `deduplicated` for each such job", "differs",
    "the record has the number of its events and their offsets; `streams-app events explain` finds the record of an event",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", keep="last", changed="data")
    for number in range(3):
        kit.send({"key": "a", "data": {"n": number}})
    kit.advance("9s")

    assert [(3, "f:s:0:0-2")] == [(record.value["fold"]["events"], record.fold_id) for record in kit.records]


@case(
    "BullMQ", "a waiting job is removed", BULLMQ, "`job.remove` ends the deduplication of its id", "same",
    "`streams-app groups drop`: no record, and the next event opens the group again",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2)

    assert 2 == kit.drop(b"a")
    send(kit, 3)
    kit.advance("9s")
    assert [[3]] == numbers(kit)


# Kafka Streams


def sessions_of(*times: int, gap: str = "5ms", **options: Any) -> list[list[int]]:
    """The times of the events of each record, by a fold with ``backlog = "sessions"``."""
    kit = tester(gap, backlog="sessions", **options)
    begin_ms = kit.now_ms - 1_000_000
    kit.catch_up([(begin_ms + at, {"key": "a", "n": at}) for at in times])
    kit.advance("1h")
    return numbers(kit)


@case(
    "Kafka Streams", "two sessions", SESSIONS, "with a gap of 5, events at 10, 12 and 20 are two sessions", "same",
    '`backlog = "sessions"`; live traffic by arrival',
)  # fmt: skip
def _() -> None:
    assert [[10, 12], [20]] == sessions_of(10, 12, 20)


@case(
    "Kafka Streams", "an event between two sessions", SESSIONS, "at 16 after these: all four become one session", "differs",
    "it belongs to the session of 20: a late event has the newest time so far, and sessions are never merged",
)  # fmt: skip
def _() -> None:
    assert [[10, 12], [20, 16]] == sessions_of(10, 12, 20, 16)


@case("Kafka Streams", "exactly the gap apart", SESSION_SOURCE, "one session", "same", "one group, also by arrival")
def _() -> None:
    live = tester("5m")
    send(live, 1, 2, every="5m")
    live.advance("6m")

    assert ([[10, 15]], [[1, 2]]) == (sessions_of(10, 15), numbers(live))


@case(
    "Kafka Streams", "an event after the grace period", f"{KAFKA_PULL}/10926", "dropped", "differs",
    "never dropped: it is folded with the newest time of its partition",
)  # fmt: skip
def _() -> None:
    assert [[10], [100, 11]] == sessions_of(10, 100, 11)


@case(
    "Kafka Streams", "one result per session", SUPPRESSED, "by default a result per update; the final one alone with `suppress`",
    "same", "one record per group, as with `suppress(untilWindowCloses)`",
)  # fmt: skip
def _() -> None:
    assert [list(range(20))] == sessions_of(*range(20))


@case(
    "Kafka Streams", "silence of the whole partition", "https://www.conduktor.io/kafka-streams/suppress-not-emitting",
    "`suppress` emits nothing until a later event moves the stream time", "differs",
    "the wall clock closes groups once the partition has been read to its end",
)  # fmt: skip
def _() -> None:
    assert [[10]] == sessions_of(10)


@case(
    "Kafka Streams", "a gap that depends on the event",
    "https://cwiki.apache.org/confluence/display/KAFKA/KIP-362:+Support+dynamic+gap+session+window",
    "proposed in 2018, under discussion", "differs",
    '`quiet_period = {field = "wait", default = "15m", at_most = "1h"}`: the last event of the group decides',
)  # fmt: skip
def _() -> None:
    kit = FoldTester(
        Fold(
            name="f", source="s", group_key="key", keep="events",
            quiet_period=QuietPeriod(field="wait", default="15m", at_most="1h"),
        )
    )  # fmt: skip
    kit.send({"key": "a", "n": 1})
    kit.send({"key": "b", "n": 2, "wait": "5m"})

    kit.advance("6m")
    assert [[2]] == numbers(kit)
    kit.advance("10m")
    assert [[2], [1]] == numbers(kit)


@case(
    "Kafka Streams", "an event without a key", SESSION_SOURCE, "skipped, with a warning", "differs",
    "a dead letter, which can be replayed",
)  # fmt: skip
def _() -> None:
    kit = tester(group_key="@key")
    kit.send({"n": 1}, key=None)

    assert ["no-group"] == [letter.reason for letter in kit.dead_letters]


def table() -> str:
    """The table of the cases, in Markdown."""
    lines = ["| case | there | here | how |", "|---|---|---|---|"]
    lines += [
        f"| {found.project}: [{found.name}]({found.url}) | {found.theirs} | **{found.verdict}** | {found.ours} |" for found in CASES
    ]
    return "\n".join(lines)


def written() -> str:
    """The page as the cases have it; what is around the table is written by hand."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"
