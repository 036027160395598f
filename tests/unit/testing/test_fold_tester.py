"""The test kit of folds, and by it the guarantee about time: groups are emitted neither too early nor too late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app import Fold, QuietPeriod
from streams_app.testing import FoldTester


def fold(**options: Any) -> Fold:
    return Fold(**({"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "15m"} | options))


def event(group: Any, *names: str) -> dict[str, Any]:
    return {"g": group, "m": list(names)}


def test_documented_example_is_correct() -> None:
    kit = FoldTester(fold())
    kit.send(event("a", "likes"))
    kit.advance("10m")
    kit.send(event("a", "shares"))

    assert [] == kit.advance("14m")
    (record,) = kit.advance("2m")
    assert (b"a", ["likes", "shares"], "f:s:0:0-1") == (record.key, record.value["m"], record.fold_id)


def test_event_exactly_at_the_quiet_period_still_belongs_to_the_group() -> None:
    kit = FoldTester(fold())
    kit.send(event("a", "x"))
    assert [] == kit.advance("15m")
    kit.send(event("a", "y"))
    (record,) = kit.advance("16m")

    assert 2 == record.value["fold"]["events"]


def test_dropped_group_makes_no_record_and_others_are_unaffected() -> None:
    kit = FoldTester(fold())
    for group in ("a", "b", "a"):
        kit.send(event(group, "x"))

    assert [2, 0] == [kit.drop(b"a"), kit.drop(b"a")]
    assert [b"b"] == [record.key for record in kit.advance("20m")]
    kit.send(event("a", "y"))
    assert ["y"] == kit.advance("20m")[0].value["m"]


@pytest.mark.parametrize(
    ("options", "names", "reason"),
    [
        ({"max_events": 3}, [["a"], ["a"], ["a"]], "max_events"),
        ({"max_changed": 2}, [["a"], ["b"], ["c"]], "max_changed"),
        ({"max_hold": "15m"}, [["a"]], "max_hold"),
    ],
)
def test_bound_closes_a_group_and_is_the_reason(options: dict[str, Any], names: list[list[str]], reason: str) -> None:
    kit = FoldTester(fold(**options))
    for each in names:
        kit.send(event("a", *each))
    kit.advance("15m")

    assert reason == kit.records[0].value["fold"]["reason"]


@pytest.mark.parametrize(("keep", "changed"), [("names", ["likes", "shares"]), ("last", {"likes": 3, "shares": 2})])
def test_events_with_repeated_names_are_folded(keep: str, changed: Any) -> None:
    kit = FoldTester(fold(keep=keep))
    for likes in (1, 2, 3):
        kit.send({"g": "a", "m": {"likes": likes, "shares": 2}})
    kit.send({"g": "b", "m": {"likes": 3, "shares": 2}})
    kit.advance("20m")

    assert [changed, changed] == [record.value["m"] for record in kit.records]
    assert [3, 1] == [record.value["fold"]["events"] for record in kit.records]


steps = st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=40)


@given(steps=steps, quiet=st.integers(2, 20), hold=st.integers(20, 60), tick=st.sampled_from([1, 3]))
def test_record_is_never_too_early_or_too_late(steps: list[tuple[int, str, str]], quiet: int, hold: int, tick: int) -> None:
    second = timedelta(seconds=1)
    kit = FoldTester(fold(quiet_period=quiet * second, max_hold=hold * second), tick=tick * second)
    for pause, group, name in steps:
        kit.advance(pause * second)
        kit.send(event(group, name))
    kit.advance((hold + tick + 1) * second)

    assert len(steps) == sum(record.value["fold"]["events"] for record in kit.records)
    for record in kit.records:
        meta = record.value["fold"]
        quiet_due, hold_due = meta["last_event_ms"] + quiet * 1000, meta["first_event_ms"] + hold * 1000
        due = min(quiet_due, hold_due)
        assert meta["reason"] in ("max_hold", "quiet")
        assert (hold_due if meta["reason"] == "max_hold" else quiet_due) <= record.emitted_ms
        assert due <= record.emitted_ms <= due + tick * 1000


OFF = st.sampled_from([-600, -7, 0, 7, 600])
"""Seconds by which the clock of a producer is wrong."""


@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abc"), OFF), min_size=1, max_size=40),
    sessions=st.booleans(),
    bounds=st.fixed_dictionaries({"max_events": st.sampled_from([0, 3]), "max_changed": st.sampled_from([2, 10_000])}),
    quiet=st.integers(2, 20),
    hold=st.integers(20, 60),
)
def test_every_record_is_on_time_and_has_the_reason_of_its_close(
    steps: list[tuple[int, str, int]], sessions: bool, bounds: dict[str, int], quiet: int, hold: int
) -> None:
    second = timedelta(seconds=1)
    backlog = "sessions" if sessions else "merge"
    kit = FoldTester(fold(quiet_period=quiet * second, max_hold=hold * second, backlog=backlog, **bounds))
    arrived, groups = {}, {}
    for number, (pause, group, off) in enumerate(steps):
        kit.advance(pause * second)
        arrived[f"n{number}"], groups[f"n{number}"] = kit.now_ms, group
        # With sessions all producers of a partition are off by the same: time is what their records say.
        kit.send(event(group, f"n{number}"), at_ms=kit.now_ms + 1_000 * (steps[0][2] if sessions else off))
    kit.advance((hold + 2) * second)

    assert sorted(arrived) == sorted(name for record in kit.records for name in record.value["m"])
    for record in kit.records:
        names, reason, emitted_ms = record.value["m"], record.value["fold"]["reason"], record.emitted_ms
        times = [arrived[name] for name in names]
        quiet_ms, hold_ms = max(times) + quiet * 1000, min(times) + hold * 1000
        assert {record.key.decode()} == {groups[name] for name in names}
        assert len(names) <= min(bounds["max_events"] or 100, bounds["max_changed"])
        if reason == "max_events":
            assert (len(names), max(times)) == (3, emitted_ms)
        elif reason == "max_changed":
            assert (len(names), True) == (2, emitted_ms in arrived.values())
        elif reason == "max_hold":
            assert hold_ms <= quiet_ms
            assert hold_ms <= emitted_ms <= hold_ms + 1_000
        else:
            assert reason == "quiet"
            assert quiet_ms < emitted_ms <= quiet_ms + 1_000


def test_backlog_is_merged_and_not_split() -> None:
    kit = FoldTester(fold(quiet_period="1m", max_hold="24h"))
    hours_ago = kit.now_ms - 7_200_000
    (record,) = kit.catch_up([(hours_ago + i * 600_000, event("a", f"n{i}")) for i in range(10)])

    assert 10 == record.value["fold"]["events"]


def test_sessions_backlog_is_split_at_its_gaps() -> None:
    kit = FoldTester(fold(quiet_period="1m", backlog="sessions"))
    hours_ago = kit.now_ms - 7_200_000
    times = [0, 60_000, 120_001, 130_000, 500_000]
    kit.catch_up([(hours_ago + at, event("a", f"n{at}")) for at in times])

    assert [2, 2, 1] == [record.value["fold"]["events"] for record in kit.records]


def test_future_dated_event_does_not_close_other_groups_early() -> None:
    kit = FoldTester(fold(quiet_period="1m"))
    kit.send(event("a", "x"))
    kit.send(event("b", "y"), at_ms=kit.now_ms + 86_400_000)

    assert [] == kit.advance("50s")
    assert {b"a", b"b"} == {record.key for record in kit.advance("20s")}


# User functions


def test_functions_decode_filter_group_and_name() -> None:
    kit = FoldTester(
        fold(
            decode=lambda raw: raw.decode().split(","),
            source_filter=lambda parts: parts[0] != "skip",
            group_key=lambda parts: parts[1],
            changed=lambda parts: {parts[2]: len(parts)},
            keep="last",
        )
    )
    for raw in (b"take,a,x", b"skip,a,y", b"take,a,z,1"):
        kit.send(raw)
    (record,) = kit.flush()

    assert {"key": "a", "changed": {"x": 3, "z": 4}} == {name: record.value[name] for name in ("key", "changed")}
    assert 2 == record.value["fold"]["events"]
    assert [] == kit.dead_letters


@pytest.mark.parametrize("name", ["decode", "source_filter", "group_key", "changed"])
def test_function_error_is_a_dead_letter(name: str) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("no such thing")

    kit = FoldTester(fold(**{name: fails}))
    kit.send(event("a", "x"))
    (dead_letter,) = kit.dead_letters

    assert ("user-error", f"{name}: RuntimeError: no such thing") == (dead_letter.reason, dead_letter.detail)
    assert [] == kit.flush()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group_key": lambda _: None}, "no-group"),
        ({"group_key": lambda _: ("a", "b")}, "no-group"),
        ({"group_key": lambda _: "x" * 513}, "too-large"),
        ({"changed": lambda _: None}, "no-changed"),
        ({"changed": lambda _: [1]}, "no-changed"),
        ({"changed": lambda _: (str(i) for i in range(257))}, "too-many-names"),
        ({"decode": lambda _: 7}, "not-an-object"),
        ({"decode": lambda raw: raw}, "not-an-object"),
    ],
)
def test_function_result_is_validated(options: dict[str, Any], reason: str) -> None:
    kit = FoldTester(fold(**options))
    kit.send(event("a", "x"))

    assert [reason] == [dead_letter.reason for dead_letter in kit.dead_letters]


def test_tombstone_never_reaches_a_decoder() -> None:
    kit = FoldTester(fold(decode=lambda raw: {"g": "a", "m": raw.decode()}))
    kit.send(None)
    kit.send(b"")

    assert ["tombstone", "tombstone"] == [dead_letter.reason for dead_letter in kit.dead_letters]


# Clocks of producers


MINUTES = 60_000


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
@pytest.mark.parametrize("off_minutes", [-10, 0, 10])
def test_producer_with_a_skewed_clock_gets_the_same_records(backlog: str, off_minutes: int) -> None:
    kit = FoldTester(fold(quiet_period="1m", max_hold="150s", backlog=backlog))
    for name, pause in (("a", "1m"), ("b", "1m"), ("c", "29s")):
        kit.send(event("g", name), at_ms=kit.now_ms + off_minutes * MINUTES)
        assert [] == kit.advance(pause)
    (record,) = kit.advance("1s")
    kit.send(event("g", "d"), at_ms=kit.now_ms + off_minutes * MINUTES)
    assert [] == kit.advance("1m")
    (quiet,) = kit.advance("1s")

    assert (["a", "b", "c"], ["d"]) == (record.value["m"], quiet.value["m"])
    assert "quiet" == quiet.value["fold"]["reason"]


@pytest.mark.parametrize("away_minutes", [2, 30, 3_000])
def test_producer_with_a_slow_clock_is_still_late_after_a_backlog(away_minutes: int) -> None:
    kit = FoldTester(fold(quiet_period="2m", max_hold="10m", backlog="sessions"))
    kit.send(event("g", "live"), at_ms=kit.now_ms - 60 * MINUTES)
    waited = [kit.now_ms + (minute - 60) * MINUTES for minute in range(1, away_minutes + 1)]
    kit.now_ms += away_minutes * MINUTES
    records = kit.catch_up([(at_ms, event("g", "waited")) for at_ms in waited])

    assert [10] * (away_minutes // 10) == [record.value["fold"]["events"] for record in records]
    assert [] == kit.advance("2m")
    assert [away_minutes % 10 + 1] == [record.value["fold"]["events"] for record in kit.advance("1s")]


@pytest.mark.parametrize("backlog", ["merge", "sessions"])
def test_producer_with_a_slow_clock_among_good_ones_is_folded_like_them(backlog: str) -> None:
    kit = FoldTester(fold(quiet_period="1m", backlog=backlog))
    for number in range(5):
        kit.send(event("good", f"n{number}"))
        kit.advance("20s")
        kit.send(event("behind", f"n{number}"), at_ms=kit.now_ms - 10 * MINUTES)
        assert [] == kit.advance("20s")
    records = kit.advance("2m")

    assert {b"good": 5, b"behind": 5} == {record.key: record.value["fold"]["events"] for record in records}


def test_closing_event_is_in_the_record_that_it_closes_at_once() -> None:
    kit = FoldTester(fold(close_when={"status": ["done"]}))
    kit.send(event("a", "x"))
    (record,) = kit.send(event("a", "y") | {"status": "done"})
    kit.send(event("a", "z"))

    assert ("closed", ["x", "y"], 2) == (record.value["fold"]["reason"], record.value["m"], record.value["fold"]["events"])
    assert [["z"]] == [one.value["m"] for one in kit.flush()]


def test_kept_events_are_in_the_record_in_order_and_a_group_closes_before_it_is_too_large() -> None:
    kit = FoldTester(Fold(name="f", source="s", group_key="id", keep="events", fields=("n",), max_bytes=100, quiet_period="1m"))
    emitted = [record for n in range(15) for record in kit.send({"id": "a", "n": n, "more": "x"})]
    emitted += kit.flush()

    assert [["max_bytes", 12], ["flush", 3]] == [[one.value["fold"]["reason"], one.value["fold"]["events"]] for one in emitted]
    assert [{"n": n} for n in range(15)] == [event for one in emitted for event in one.value["events"]]


def test_aggregated_values_are_in_the_record_by_name() -> None:
    kit = FoldTester(fold(keep={"likes": "sum", "seen": "max", "posts": "count", "by": "first", "rating": "mean"}))
    kit.send(event("a") | {"m": {"likes": 2**62, "seen": "2026-01-02", "posts": None, "price": 1, "by": "ann", "rating": 4}})
    kit.send(event("a") | {"m": {"likes": 2**62, "seen": "2026-01-01", "posts": 5, "price": 2, "by": "bob", "rating": 5}})
    kit.send(event("a") | {"m": {"likes": "many"}})
    (record,) = kit.flush()

    assert {"likes": 2**63, "seen": "2026-01-02", "posts": 2, "price": 2, "by": "ann", "rating": 4.5} == record.value["m"]
    assert ["no-value"] == [dead_letter.reason for dead_letter in kit.dead_letters]


def test_last_event_determines_the_quiet_period_of_its_group() -> None:
    kit = FoldTester(fold(quiet_period=QuietPeriod(field="wait", default="10m", at_most="1h")))
    kit.send(event("a", "x") | {"wait": "40m"})
    kit.send(event("b", "x"))
    kit.send(event("c", "x") | {"wait": "1h"})
    kit.send(event("c", "y") | {"wait": 60})

    assert [b"c"] == [record.key for record in kit.advance("2m")]
    assert [b"b"] == [record.key for record in kit.advance("10m")]
    assert [] == kit.advance("20m")
    assert [b"a"] == [record.key for record in kit.advance("20m")]


@pytest.mark.parametrize("wait", ["soon", "2h", 0, -1, True, [60], 3_601, "0ms", 1e300])
def test_event_with_a_missing_or_too_long_duration_is_rejected(wait: Any) -> None:
    kit = FoldTester(fold(quiet_period=QuietPeriod(field="wait", default="10m", at_most="1h")))
    kit.send(event("a", "x") | {"wait": wait})

    assert ["no-value"] == [dead_letter.reason for dead_letter in kit.dead_letters]


def test_function_determines_the_quiet_period_and_its_error_is_a_dead_letter() -> None:
    rule = QuietPeriod(field=lambda found: timedelta(minutes=found["wait"]), default="10m", at_most="1h")
    kit = FoldTester(fold(quiet_period=rule))
    kit.send(event("a", "x") | {"wait": 1})
    kit.send(event("b", "x"))

    assert [b"a"] == [record.key for record in kit.advance("2m")]
    assert ["user-error"] == [dead_letter.reason for dead_letter in kit.dead_letters]


def test_quiet_period_that_sets_itself_shortens_where_groups_are_soon_complete() -> None:
    kit = FoldTester(fold(quiet_period={"auto": "knee", "at_least": "2s", "default": "10m", "at_most": "1h"}))
    kit.send(event("first", "x"))
    for minute in range(30):
        for at in range(20):
            kit.send(event(f"{minute} {at % 10}", "x"))
            kit.advance("1s")
        kit.advance("40s")

    assert 600 < closed_after_s(kit, "first") <= 602
    assert 2 < closed_after_s(kit, "29 9") < 60


def closed_after_s(kit: FoldTester, group: str) -> float:
    (record,) = (one for one in kit.records if one.key == group.encode())
    return (record.emitted_ms - record.value["fold"]["last_event_ms"]) / 1_000


def test_first_event_of_a_quiet_group_makes_a_record_at_once_and_the_others_are_folded() -> None:
    kit = FoldTester(fold(leading=True))
    first = kit.send(event("a", "x"))
    rest = [*kit.send(event("a", "y")), *kit.send(event("a", "z")), *kit.advance("30m")]
    (leading,) = kit.send(event("a", "x"))
    nothing_follows = kit.advance("30m")
    done = kit.send(event("a", "last")) + kit.send(event("b", "x"))

    assert [("leading", ["x"])] == [(record.value["fold"]["reason"], record.value["m"]) for record in first]
    assert [("quiet", ["y", "z"], 2)] == [
        (one.value["fold"]["reason"], one.value["m"], one.value["fold"]["events"]) for one in rest
    ]
    assert ("leading", []) == (leading.value["fold"]["reason"], nothing_follows)
    assert ["leading", "leading"] == [record.value["fold"]["reason"] for record in done]


def test_first_event_that_closes_its_group_makes_one_record() -> None:
    kit = FoldTester(fold(leading=True, close_when={"status": ["done"]}))
    found = [*kit.send(event("a", "x") | {"status": "done"}), *kit.advance("1h")]

    assert ["closed"] == [record.value["fold"]["reason"] for record in found]


@pytest.mark.parametrize("value", [b"1e999", b"[" * 300 + b"]" * 300])
def test_values_of_names_are_not_encoded_if_only_names_are_kept(value: bytes) -> None:
    kit = FoldTester(fold(close_when={"status": ["done"]}))
    (record,) = kit.send(b'{"g": "a", "status": "done", "m": {"x": %b}}' % value)

    assert (["x"], []) == (record.value["m"], kit.dead_letters)


ROW_OF_DEBEZIUM = {"op": "c", "before": None, "after": {"g": "a", "m": {"x": 1}}, "source": {}, "ts_ms": 1}


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, event("a", "x")),
        ({"keep": "last"}, event("a") | {"m": {"x": 1}}),
        ({"keep": {"x": "sum"}}, event("a") | {"m": {"x": 1}}),
        ({"keep": "events", "changed": ""}, event("a", "x")),
        ({"keep": "events", "changed": "", "fields": ["m"]}, event("a", "x")),
        ({"leading": True}, event("a", "x")),
        ({"dedupe_by": "id"}, event("a", "x") | {"id": 1}),
        ({"close_when": {"is": ["over"]}}, event("a", "x")),
        ({"only": {"g": "a"}}, event("a", "x")),
        ({"group_key": lambda found: found["g"]}, event("a", "x")),
        ({"format": "debezium", "changed": "m"}, ROW_OF_DEBEZIUM),
        ({"backlog": "sessions"}, event("a", "x")),
        ({"max_events": 10}, event("a", "x")),
    ],
    ids=[
        "names", "last", "sum", "events", "fields", "leading", "dedupe_by", "close_when", "only", "function", "debezium",
        "sessions", "max_events",
    ],
)  # fmt: skip
def test_each_kind_of_fold_has_a_quiet_period_that_sets_itself(options: dict[str, Any], value: dict[str, Any]) -> None:
    kit = FoldTester(fold(quiet_period={"auto": "knee", "at_least": "2s", "default": "1m", "at_most": "1h"}, **options))
    kit.send(value)

    assert ([], []) == (kit.dead_letters, kit.advance("1m"))
    kit.advance("2s")
    assert ([], 1) == (kit.open_groups, len(kit.records))
