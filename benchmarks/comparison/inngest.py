"""What Inngest does with bursts of events, and what a fold does."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmarks.comparison.cases import Cases, numbers, reasons, seconds, send, tester

INNGEST_DEBOUNCE = "https://www.inngest.com/docs/guides/debounce"
INNGEST_FLOW = "https://www.inngest.com/docs/durable-execution/flow-control/debounce"
INNGEST_BATCH = "https://www.inngest.com/docs/guides/batching"
INNGEST = "https://github.com/inngest/inngest"

CASES = Cases("Inngest")


@CASES.add(
    "a burst", INNGEST_DEBOUNCE, "one run, once no event has come for `period`", "same", "`quiet_period`: one record",
)  # fmt: skip
def _() -> None:
    kit = tester("5m")
    send(kit, 1, 2, 3, every="1m")

    assert [] == kit.advance("3m")
    kit.advance("2m")
    assert [[1, 2, 3]] == numbers(kit)


@CASES.add(
    "an event during the wait", f"{INNGEST}/pull/612",
    "with 5 s, events at 0 s and 3 s run at 8 s: each event restarts the period", "same",
    "`quiet_period`: due 5 s after the last event, emitted with the next `worker.tick`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s")
    send(kit, 1, 2, every="3s")
    kit.advance("1m")

    assert ([[1, 2]], True) == (numbers(kit), 8 <= seconds(kit)[0] <= 9)


@CASES.add(
    "events that never stop", INNGEST_DEBOUNCE, "`timeout` bounds the wait", "same",
    "`max_hold`, 6 h by default: the wait is never unbounded",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", max_hold="10m")
    send(kit, *range(25), every="1m")

    assert (["max_hold", "max_hold"], 20) == (reasons(kit), sum(map(len, numbers(kit))))


@CASES.add("several keys", INNGEST_DEBOUNCE, "each value of `key` has its own period", "same", "`group_key`")
def _() -> None:
    kit = tester("5m")
    send(kit, 1, key="a", every="3m")
    send(kit, 2, key="b", every="3m")

    assert ([[1]], [b"b"]) == (numbers(kit), kit.open_groups)


@CASES.add(
    "no key", INNGEST_FLOW, "without `key`, all events of a function share one period", "differs",
    "a fold has a `group_key`; in Python it may be a function that returns a constant, which makes one group per partition",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", group_key=lambda _: "all")
    send(kit, 1, key="a")
    send(kit, 2, key="b")
    kit.advance("6m")

    assert [[1, 2]] == numbers(kit)


@CASES.add(
    "what the function receives", INNGEST_FLOW, "the last event, neither the first nor an array of all", "differs",
    'what `keep` says: the changed names, the last value of each (`"last"`), aggregates, or all events',
)  # fmt: skip
def _() -> None:
    kit = tester(keep="last", changed="fields")
    kit.send({"key": "a", "fields": {"name": "x", "age": 1}})
    kit.send({"key": "a", "fields": {"age": 2}})
    kit.advance("6m")

    assert [{"name": "x", "age": 2}] == [record.value["fields"] for record in kit.records]


@CASES.add(
    "all events of the window", f"{INNGEST}/issues/3695",
    "asked for (debounce timing, batch payload), open: the function gets the last event alone", "differs",
    '`keep = "events"`: all events in the order of the log, whole or their `fields`',
)  # fmt: skip
def _() -> None:
    kit = tester(fields=["n"])
    send(kit, 1, 2, 3)
    kit.advance("6m")

    assert [[{"n": 1}, {"n": 2}, {"n": 3}]] == [record.value["events"] for record in kit.records]


@CASES.add(
    "an event with an older time", f"{INNGEST}/pull/975",
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


@CASES.add(
    "debounce and batching together", INNGEST_DEBOUNCE, "debounce does not work with batched functions", "differs",
    "`quiet_period`, `max_hold`, `max_events` and `max_bytes` apply together; the record names the one that closed it",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", max_events=3)
    send(kit, 1, 2, 3, 4)
    kit.advance("6m")

    assert ([[1, 2, 3], [4]], ["max_events", "quiet"]) == (numbers(kit), reasons(kit))


@CASES.add(
    "the length of the period", INNGEST_DEBOUNCE, "1 s to 7 days", "differs",
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


@CASES.add(
    "the first event at once", INNGEST_DEBOUNCE, "not by debounce; rate limiting runs the first event and skips others",
    "differs", "`leading = true`: a record of the first event at once, and the events that follow make the next record",
)  # fmt: skip
def _() -> None:
    kit = tester("5m", leading=True)
    send(kit, 1, 2, 3)

    assert ([[1]], ["leading"]) == (numbers(kit), reasons(kit))
    kit.advance("6m")
    assert ([[1], [2, 3]], ["leading", "quiet"]) == (numbers(kit), reasons(kit))


@CASES.add("a full batch", INNGEST_BATCH, "runs when it has `maxSize` events", "same", "`max_events`")
def _() -> None:
    kit = tester("5m", max_events=2)
    send(kit, 1, 2, 3)

    assert ([[1, 2]], ["max_events"]) == (numbers(kit), reasons(kit))


@CASES.add(
    "a batch that is not full", INNGEST_BATCH, "runs `timeout` after its first event, however many came since", "same",
    "`max_hold` as long as `quiet_period`",
)  # fmt: skip
def _() -> None:
    kit = tester("5s", max_hold="5s")
    send(kit, 1, 2, 3, every="2s")

    assert ([[1, 2, 3]], ["max_hold"], True) == (numbers(kit), reasons(kit), 5 <= seconds(kit)[0] <= 6)


@CASES.add(
    "large events in a batch", INNGEST_BATCH, "runs early when its events exceed 10 MiB", "differs",
    "`max_bytes`, 500 kB by default and 700 kB at most: the group closes before the event that would exceed it",
)  # fmt: skip
def _() -> None:
    kit = tester(max_bytes=1_000)
    for text in ("x" * 600, "y" * 600):
        kit.send({"key": "a", "text": text})

    assert ["max_bytes"] == reasons(kit)
    assert [b"a"] == kit.open_groups


@CASES.add(
    "an event that must not wait", INNGEST_BATCH, "an event for which `if` is false skips the batch and runs at once",
    "differs", "no event passes its group by. Two folds with a `source_filter` each do it, one of them with `max_events = 1`",
)  # fmt: skip
def _() -> None:
    waits = tester(source_filter=lambda event: event["free"])
    hurries = tester(source_filter=lambda event: not event["free"], max_events=1)
    for free in (True, False, True):
        for kit in (waits, hurries):
            kit.send({"key": "a", "n": 1, "free": free})

    assert ([], [[1]]) == (numbers(waits), numbers(hurries))


@CASES.add(
    "the order of events", f"{INNGEST}/issues/3211",
    "no guarantee for payloads that are sent in bulk; asked for, open", "differs", "the order of the log, within a partition",
)  # fmt: skip
def _() -> None:
    kit = tester()
    kit.catch_up([(kit.now_ms - 1_000_000 - number, {"key": "a", "n": number}) for number in range(50)])
    kit.flush()

    assert [list(range(50))] == numbers(kit)


@CASES.add(
    "batches and idempotency", INNGEST_BATCH, "batching cannot be combined with idempotency", "differs",
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


@CASES.add(
    "a condition without code", f"{INNGEST}-js/issues/1050", "asked for: fold only events that match", "differs",
    "`only = {type = [\"like\", \"share\"]}`: other events are skipped",
)  # fmt: skip
def _() -> None:
    kit = tester(only={"type": ["like", "share"]})
    for number, kind in enumerate(("like", "view", "share")):
        kit.send({"key": "a", "n": number, "type": kind})
    kit.advance("6m")

    assert [[0, 2]] == numbers(kit)
