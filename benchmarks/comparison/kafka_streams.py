"""What Kafka Streams does with bursts of events, and what a fold does."""

from __future__ import annotations

from typing import Any

from benchmarks.comparison.cases import Cases, numbers, send, tester
from streams_app import Fold
from streams_app.quiet_period import AutoQuietPeriod, QuietPeriod
from streams_app.testing import FoldTester

SESSIONS = "https://kafka.apache.org/42/javadoc/org/apache/kafka/streams/kstream/SessionWindows.html"
SUPPRESSED = "https://kafka.apache.org/42/javadoc/org/apache/kafka/streams/kstream/Suppressed.html"
SESSION_SOURCE = (
    "https://github.com/apache/kafka/blob/trunk/streams/src/main/java/org/apache/kafka/streams/kstream/internals/"
    "KStreamSessionWindowAggregate.java"
)
KSQL_AGGREGATES = "https://docs.confluent.io/platform/current/ksqldb/reference/aggregate-functions.html"
KAFKA_PULL = "https://github.com/apache/kafka/pull"

CASES = Cases("Kafka Streams")


def sessions_of(*times: int, gap: str = "5ms", **options: Any) -> list[list[int]]:
    """The times of the events of each record, by a fold with ``backlog = "sessions"``."""
    kit = tester(gap, backlog="sessions", **options)
    begin_ms = kit.now_ms - 1_000_000
    kit.catch_up([(begin_ms + at, {"key": "a", "n": at}) for at in times])
    kit.advance("1h")
    return numbers(kit)


@CASES.add(
    "two sessions", SESSIONS, "with a gap of 5, events at 10, 12 and 20 are two sessions", "same",
    '`backlog = "sessions"`; live traffic by arrival',
)  # fmt: skip
def _() -> None:
    assert [[10, 12], [20]] == sessions_of(10, 12, 20)


@CASES.add(
    "an event between two sessions", SESSIONS, "at 16 after these: all four become one session", "differs",
    "it belongs to the session of 20: a late event has the newest time so far, and sessions are never merged",
)  # fmt: skip
def _() -> None:
    assert [[10, 12], [20, 16]] == sessions_of(10, 12, 20, 16)


@CASES.add("exactly the gap apart", SESSION_SOURCE, "one session", "same", "one group, also by arrival")
def _() -> None:
    live = tester("5m")
    send(live, 1, 2, every="5m")
    live.advance("6m")

    assert ([[10, 15]], [[1, 2]]) == (sessions_of(10, 15), numbers(live))


@CASES.add(
    "an event after the grace period", f"{KAFKA_PULL}/10926", "dropped", "differs",
    "never dropped: it is folded with the newest time of its partition",
)  # fmt: skip
def _() -> None:
    assert [[10], [100, 11]] == sessions_of(10, 100, 11)


@CASES.add(
    "one result per session", SUPPRESSED, "by default a result per update; the final one alone with `suppress`",
    "same", "one record per group, as with `suppress(untilWindowCloses)`",
)  # fmt: skip
def _() -> None:
    assert [list(range(20))] == sessions_of(*range(20))


@CASES.add(
    "silence of the whole partition", "https://www.conduktor.io/kafka-streams/suppress-not-emitting",
    "`suppress` emits nothing until a later event moves the stream time", "differs",
    "the wall clock closes groups once the partition has been read to its end",
)  # fmt: skip
def _() -> None:
    assert [[10]] == sessions_of(10)


@CASES.add(
    "a gap that depends on the event",
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


@CASES.add(
    "trying another gap", "https://github.com/confluentinc/ksql/issues/6369",
    "ksqlDB: the gap is fixed, another one needs the query to be dropped and created again; asked for, open", "differs",
    '`quiet_period = {auto = "knee", at_least = "2s", at_most = "1h"}`: sets itself while events arrive',
)  # fmt: skip
def _() -> None:
    rule = AutoQuietPeriod(auto="knee", at_least="2s", default="10m", at_most="1h")
    kit = FoldTester(Fold(name="f", source="s", group_key="key", keep="events", quiet_period=rule))
    for number in range(1_200):
        kit.send({"key": f"{number // 20} {number % 10}", "n": number})
        kit.advance("41s" if number % 20 == 19 else "1s")

    kit.send({"key": "a", "n": -1})
    kit.advance("1m")
    assert [[-1]] == [one for one in numbers(kit) if -1 in one]


@CASES.add(
    "an event without a key", SESSION_SOURCE, "skipped, with a warning", "differs",
    "a dead letter, which can be replayed",
)  # fmt: skip
def _() -> None:
    kit = tester(group_key="@key")
    kit.send({"n": 1}, key=None)

    assert ["no-group"] == [letter.reason for letter in kit.dead_letters]


@CASES.add(
    "an event that a producer sends twice", "https://github.com/apache/kafka/pull/22189",
    "KIP-655, proposed: `deduplicateByKey` and `deduplicateByKeyValue`, as an operator before the aggregation", "differs",
    '`dedupe_by = "event_id"`: ignored while its group is open, without another store or topic',
)  # fmt: skip
def _() -> None:
    kit = tester(changed="m", keep={"paid": "sum"}, dedupe_by="event_id")
    for event_id in ("e1", "e2", "e1"):
        kit.send({"key": "a", "m": {"paid": 5}, "event_id": event_id})
    kit.advance("6m")

    assert [{"paid": 10}] == [record.value["m"] for record in kit.records]


@CASES.add(
    "aggregates of a session", KSQL_AGGREGATES,
    "ksqlDB: `AVG`, `SUM`, `MIN`, `MAX`, `EARLIEST_BY_OFFSET`, `LATEST_BY_OFFSET`, `COUNT`; sums and means of doubles are rounded "
    "at each event",
    "same", '`keep = {rating = "mean", status = "first"}` and the others, exact: rounded once, in the record',
)  # fmt: skip
def _() -> None:
    kit = tester(changed="m", keep={"rating": "mean", "status": "first", "last": "last"})
    for rating, status in ((0.1, "new"), (0.2, "paid"), (0.3, "sent")):
        kit.send({"key": "a", "m": {"rating": rating, "status": status, "last": status}})
    kit.advance("6m")

    assert [{"rating": 0.2, "status": "new", "last": "sent"}] == [record.value["m"] for record in kit.records]
