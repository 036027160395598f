"""The declaration of a fold: its defaults, its durations, and what is rejected."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streams_app.fold import Fold
from streams_app.formatting import milliseconds, parse_duration
from streams_app.quiet_period import AutoQuietPeriod, QuietPeriod

REQUIRED: dict[str, Any] = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "quiet_period": "15m"}


def fold(**values: Any) -> Fold:
    return Fold(**(REQUIRED | values))


def faults(**values: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        fold(**values)
    return "\n".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in caught.value.errors())


def test_defaults_match_the_documentation() -> None:
    declared = Fold(
        name="account-metrics",
        source="post-metric-updated",
        group_key="account_id",
        changed="metrics",
        quiet_period=timedelta(minutes=15),
    )

    assert {
        "name": "account-metrics",
        "source": "post-metric-updated",
        "output": "post-metric-updated.account-metrics",
        "dead_letters": "post-metric-updated.dead",
        "group_key": "account_id",
        "changed": "metrics",
        "keep": "names",
        "fields": (),
        "max_bytes": 500_000,
        "quiet_period": timedelta(minutes=15),
        "max_hold": timedelta(hours=6),
        "max_events": 0,
        "max_changed": 10_000,
        "close_when": None,
        "leading": False,
        "backlog": "merge",
        "start": "earliest",
        "tombstones": "dead-letter",
        "format": "json",
        "unavailable_value": "__debezium_unavailable_value",
        "only": {},
        "dedupe_by": None,
        "decode": None,
        "source_filter": None,
        "group_as": None,
        "changed_as": None,
    } == declared.model_dump()


@pytest.mark.parametrize("field", sorted(REQUIRED))
def test_missing_required_field_is_named(field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Fold(**{name: value for name, value in REQUIRED.items() if name != field})

    assert [((field,), "missing")] == [(fault["loc"], fault["type"]) for fault in caught.value.errors()]


def test_explicit_topics_are_kept() -> None:
    declared = fold(output="out", dead_letters="dead")

    assert ("out", "dead") == (declared.output, declared.dead_letters)


def test_fold_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        fold().changed = "other"  # type: ignore[misc]  # the assignment is the fault under test


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("500ms", 500), ("1s", 1_000), ("90s", 90_000), ("15m", 900_000), ("6h", 21_600_000), ("2d", 172_800_000),
        ("1.5s", 1_500), ("0.5h", 1_800_000), (" 15m ", 900_000), ("15 m", 900_000), ("0s", 0), ("007s", 7_000),
    ],
)  # fmt: skip
def test_duration_is_a_number_and_a_unit(text: str, expected_ms: int) -> None:
    assert timedelta(milliseconds=expected_ms) == parse_duration(text)


def test_timedelta_is_accepted_unchanged_as_a_duration() -> None:
    assert timedelta(minutes=3) == parse_duration(timedelta(minutes=3))


@pytest.mark.parametrize(
    "value",
    ["", " ", "15", "m", "-1s", "+1s", "15M", "15min", "1h30m", "1,5s", ".5s", "5.s", "1e3s",
     "15m\nx", "P1D", "٣s", 900, 1.5, True, None, [], {}],
)  # fmt: skip
def test_invalid_duration_message_shows_how_to_write_one(value: Any) -> None:
    with pytest.raises(ValueError, match="not a duration: write a number and a unit, as in 500ms, 90s, 15m"):
        parse_duration(value)


@given(st.integers(0, 10**12))
def test_whole_milliseconds_survive_parsing(whole_ms: int) -> None:
    assert whole_ms == milliseconds(parse_duration(f"{whole_ms}ms"))


def test_durations_are_available_in_milliseconds() -> None:
    declared = fold(quiet_period="1.5s", max_hold="1m")

    assert (1_500, 60_000) == (declared.quiet_period_ms, declared.max_hold_ms)


@pytest.mark.parametrize(
    ("group_key", "expected"),
    [
        ("account_id", ("account_id",)),
        ("a.b", ("a.b",)),
        (["tenant", "a.b"], ("tenant", "a.b")),
        (["one"], ("one",)),
        ("@key", ("key",)),
    ],
)
def test_group_fields_appear_in_records_under_their_own_names(group_key: Any, expected: tuple[str, ...]) -> None:
    assert expected == fold(group_key=group_key).group_fields


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"group_key": len}, (("key",), "m")),
        ({"group_key": len, "group_as": "account_id"}, (("account_id",), "m")),
        ({"changed": len}, (("id",), "changed")),
        ({"changed": len, "changed_as": "metrics"}, (("id",), "metrics")),
    ],
)
def test_function_results_appear_under_their_declared_names(values: dict[str, Any], expected: Any) -> None:
    declared = fold(**values)

    assert expected == (declared.group_fields, declared.changed_field)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({"group_key": "fold"}, "a field named 'fold' would clash", id="a group field named fold"),
        pytest.param({"group_key": ["id", "fold"]}, "a field named 'fold' would clash", id="one of several named fold"),
        pytest.param({"changed": "fold"}, "a field named 'fold' would clash", id="a changed field named fold"),
        pytest.param({"changed": "id"}, "'id' cannot also be a group field", id="the changed field is the group field"),
        pytest.param({"group_key": ["t", "m"]}, "'m' cannot also be a group field", id="it is one of the group fields"),
        pytest.param({"group_key": "@key", "changed": "key"}, "'key' cannot also be", id="it is called as the record key is"),
        pytest.param({"group_key": ["id", "@key"]}, "@key cannot be combined", id="the record key and a field"),
        pytest.param({"group_key": ["id", "id"]}, "each once", id="a group field twice"),
        pytest.param({"group_key": []}, "at least one field", id="no group field"),
        pytest.param({"group_key": ""}, "an empty path", id="an empty group field"),
        pytest.param({"group_key": "a..b"}, "an empty path", id="an empty step"),
        pytest.param({"group_key": ".a"}, "an empty path", id="an empty first step"),
        pytest.param({"changed": ""}, "changed must name a field", id="no changed field"),
        pytest.param({"quiet_period": "0s"}, "at least 1ms", id="no quiet period"),
        pytest.param({"quiet_period": "0.9ms"}, "at least 1ms", id="less than a millisecond"),
        pytest.param(
            {"group_key": "@kye"}, "'@kye' begins with @ and is not @key, the record key, did you mean '@key'?", id="@kye"
        ),
        pytest.param({"group_key": "@"}, "'@' begins with @ and is not @key, the record key", id="an at sign alone"),
        pytest.param({"group_key": "@timestamp"}, "begins with @ and is not @key, the record key", id="a name that begins with @"),
        pytest.param({"group_key": ["id", "@Key"]}, "'@Key' begins with @", id="one of several that begins with @"),
        pytest.param({"group_as": "key"}, "group_as = 'key' is only for a function", id="another name for a group field"),
        pytest.param({"group_key": "@key", "group_as": "id"}, "group_as = 'id' is only for a function", id="or for the record key"),
        pytest.param({"changed_as": "n"}, "changed_as = 'n' is only for a function", id="another name for the changed field"),
        pytest.param({"group_key": len, "group_as": ""}, "group_as = '' is not a name", id="no name for a group"),
        pytest.param({"changed": len, "changed_as": ""}, "changed_as = '' is not a name", id="no name for what changed"),
        pytest.param({"group_key": len, "group_as": "fold"}, "a field named 'fold' would clash", id="a group called fold"),
        pytest.param({"changed": len, "changed_as": "fold"}, "a field named 'fold' would clash", id="changes called fold"),
        pytest.param(
            {"group_key": len, "group_as": "m"}, "'m' cannot also be a group field", id="a group called as the changes are"
        ),
        pytest.param(
            {"changed": len, "changed_as": "id"}, "'id' cannot also be a group field", id="changes called as the group is"
        ),
        pytest.param(
            {"group_key": len, "group_as": "@id"}, "'@id' begins with @", id="a group called as if it were the record key"
        ),
        pytest.param({"quiet_period": "7h"}, "quiet_period is longer than max_hold, which is 6h by default: set max_hold", id="6h"),
        pytest.param({"max_hold": "14m"}, "must not be shorter than quiet_period", id="a hold shorter than the quiet period"),
        pytest.param({"name": "Upper"}, "may hold a-z, 0-9, _ and -", id="capitals in the name"),
        pytest.param({"name": "-a"}, "may hold a-z, 0-9, _ and -", id="a name that begins with a dash"),
        pytest.param({"name": ""}, "may hold a-z, 0-9, _ and -", id="an empty name"),
        pytest.param({"name": "a" * 64}, "at most 63", id="a name of 64"),
        pytest.param({"name": "a:b"}, "may hold a-z, 0-9, _ and -", id="a colon, which separates fold ids"),
        pytest.param({"source": "a b"}, "source = 'a b' is not a Kafka topic name", id="a blank in a topic"),
        pytest.param({"source": ""}, "source = '' is not a Kafka topic name", id="an empty topic"),
        pytest.param({"output": "a/b"}, "output = 'a/b' is not a Kafka topic name", id="a slash in a topic"),
        pytest.param({"output": "."}, "output = '.' is not a Kafka topic name", id="a dot alone"),
        pytest.param({"dead_letters": ".."}, "dead_letters = '..' is not a Kafka topic name", id="two dots alone"),
        pytest.param({"dead_letters": "ä"}, "dead_letters = 'ä' is not a Kafka topic name", id="beyond ASCII"),
        pytest.param({"output": "s"}, "three different topics", id="output is the source"),
        pytest.param({"dead_letters": "s"}, "three different topics", id="dead letters go to the source"),
        pytest.param({"output": "s.dead"}, "three different topics", id="output and dead letters share a topic"),
        pytest.param({"keep": "first"}, "keep: ", id="an unknown keep"),
        pytest.param({"backlog": "drop"}, "backlog: ", id="an unknown backlog"),
        pytest.param({"start": "now"}, "start: ", id="an unknown start"),
        pytest.param({"tombstones": "drop"}, "tombstones: ", id="an unknown tombstones"),
        pytest.param({"max_events": -1}, "max_events: ", id="a negative bound of events"),
        pytest.param({"max_changed": 0}, "max_changed: ", id="no names at all"),
        pytest.param({"max_changed": 100_001}, "max_changed: ", id="too many names"),
        pytest.param({"quiet_perod": "1m"}, "quiet_perod: ", id="an unknown field"),
    ],
)
def test_unworkable_declaration_is_rejected(values: dict[str, Any], expected: str) -> None:
    assert expected in faults(**values)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"max_hold": "15m"}, id="a hold as long as the quiet period"),
        pytest.param({"quiet_period": "1ms"}, id="a millisecond"),
        pytest.param({"name": "a" * 63}, id="a name of 63"),
        pytest.param({"name": "0_a-b"}, id="every kind of character"),
        pytest.param({"group_key": "a.fold"}, id="fold as a step of a path"),
        pytest.param({"group_key": "folded"}, id="a field that begins like fold"),
        pytest.param({"group_key": "a.@id"}, id="a step of a path that begins with @"),
        pytest.param({"quiet_period": "6h"}, id="a quiet period as long as the default of max_hold"),
        pytest.param({"max_events": 1, "max_changed": 1}, id="the least bounds"),
        pytest.param({"max_events": 2**40, "max_changed": 100_000}, id="the greatest bounds"),
    ],
)
def test_declaration_at_a_limit_is_accepted(values: dict[str, Any]) -> None:
    assert values == {field: values[field] for field in fold(**values).model_fields_set & values.keys()}


@pytest.mark.parametrize("field", ["source", "output", "dead_letters"])
def test_topic_name_has_at_most_249_characters(field: str) -> None:
    topics = {"output": "out", "dead_letters": "dead"}

    assert "a" * 249 == getattr(fold(**(topics | {field: "a" * 249})), field)
    assert f"{field} = '{'a' * 250}' is not a Kafka topic name" in faults(**(topics | {field: "a" * 250}))


def test_default_topic_that_is_too_long_is_a_fault() -> None:
    assert "output = " in faults(source="a" * 248)


def test_all_faults_of_a_fold_are_reported_together() -> None:
    message = faults(name="F", source="a b", output="o", group_key=["fold", "fold"], changed="", quiet_period="0s")

    assert [] == [
        part
        for part in ("the name 'F'", "source = 'a b'", "each once", "named 'fold'", "changed must", "at least 1ms")
        if part not in message
    ]


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ({}, "close_when must name at least one field"),
        ({"": ["x"]}, "close_when holds an empty path: ''"),
        ({"a..b": ["x"]}, "close_when holds an empty path: 'a..b'"),
        ({"status": []}, "close_when.status must list 1 to 1000 values"),
        ({"status": list(range(1_001))}, "close_when.status must list 1 to 1000 values"),
    ],
)
def test_close_when_needs_fields_and_values(rule: Any, fault: str) -> None:
    assert fault in faults(close_when=rule)


@pytest.mark.parametrize("rule", ["status", {"status": "done"}, {"status": [None]}, {"status": [["done"]]}, 1])
def test_close_when_of_another_form_is_rejected_without_the_types_of_pydantic(rule: Any) -> None:
    message = faults(close_when=rule)

    assert "must be a table of fields, each with a list of values" in message
    assert "union" not in message


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_close_when_lists_only_numbers_that_an_event_can_have(number: float) -> None:
    assert f"'status' lists {number}, which no event can have" in faults(close_when={"status": ["done", number]})


@pytest.mark.parametrize("keep", ["first", ["likes"], {"likes": "median"}, {1: "sum"}, None, 1])
def test_keep_of_another_form_is_rejected(keep: Any) -> None:
    assert 'keep: Value error, must be "names", "last", "events", or a table of names' in faults(keep=keep)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"keep": {}}, "keep must name at least one aggregate"),
        ({"keep": {"likes": "sum"}, "max_changed": 1_501}, "max_changed must be at most 1500 if keep is a table"),
        ({"fields": ["a"]}, 'fields is only for keep = "events"'),
        ({"max_bytes": 1_000}, 'max_bytes is only for keep = "events"'),
        ({"keep": "events"}, 'changed does not go with keep = "events"'),
        ({"keep": "events", "changed": "", "fields": ["a..b"]}, "fields holds an empty path"),
        ({"keep": "events", "changed": "", "fields": ["a", "a"]}, "fields must name each field once"),
        ({"keep": "events", "changed": "", "max_bytes": 99}, "max_bytes: "),
        ({"keep": "events", "changed": "", "max_bytes": 700_001}, "max_bytes: "),
        ({"keep": "events", "changed": "", "group_key": "events"}, "the changed field 'events' cannot also be a group field"),
    ],
)
def test_options_incompatible_with_keep_are_rejected(values: dict[str, Any], fault: str) -> None:
    assert fault in faults(**values)


def test_aggregates_have_a_lower_default_bound_on_names() -> None:
    declared = Fold(name="f", source="s", group_key="g", changed="m", quiet_period="1s", keep={"likes": "sum"})

    assert (1_500, {"likes": "sum"}) == (declared.max_changed, declared.aggregates)


@pytest.mark.parametrize(
    ("quiet_period", "fault"),
    [
        ({"field": "wait"}, "quiet_period: Value error, default: Field required; at_most: Field required"),
        ({"field": "wait", "default": "1m", "at_most": "1h", "least": "1s"}, "least: Extra inputs are not permitted"),
        ({"field": "wait", "default": "soon", "at_most": "1h"}, "default: 'soon' is not a duration"),
        ({"field": "wait", "default": "2h", "at_most": "1h"}, "quiet_period.default must not be longer than at_most"),
        ({"field": "a..b", "default": "1m", "at_most": "1h"}, "quiet_period.field holds an empty path"),
        ({"field": "wait", "default": "0ms", "at_most": "1h"}, "quiet_period.default must be at least 1ms"),
        ({"field": "wait", "default": "1m", "at_most": "7h"}, "quiet_period is longer than max_hold"),
        (["wait"], "quiet_period: "),
    ],
)
def test_quiet_period_by_event_needs_a_field_and_two_durations(quiet_period: Any, fault: str) -> None:
    assert fault in faults(quiet_period=quiet_period)


def test_quiet_period_by_event_has_a_default_and_a_limit() -> None:
    rule = QuietPeriod(field="wait", default="1m", at_most="1h")
    declared = Fold(name="f", source="s", group_key="g", changed="m", quiet_period=rule)

    assert (3_600_000, 60_000) == (declared.quiet_period_ms, declared.default_quiet_period_ms)
    assert "by wait, 1m by default, 1h at most" == str(rule)


LIMITS = {"at_least": "10s", "at_most": "1h"}


@pytest.mark.parametrize(
    ("quiet_period", "fault"),
    [
        (LIMITS, "auto: Field required"),
        ({"auto": "knee"}, "at_least: Field required; at_most: Field required"),
        ({"auto": "kneee", **LIMITS}, 'auto: must be "knee" or {target_ratio = 0.95}, did you mean knee?'),
        ({"auto": {}, **LIMITS}, 'auto: must be "knee" or {target_ratio = 0.95}'),
        ({"auto": {"target": 0.9}, **LIMITS}, "did you mean target_ratio?"),
        ({"auto": True, **LIMITS}, 'auto: must be "knee"'),
        ({"auto": {"target_ratio": 1}, **LIMITS}, "auto: target_ratio must be a number above 0 and below 1, such as 0.95, not 1"),
        ({"auto": {"target_ratio": 0.0}, **LIMITS}, "above 0 and below 1, such as 0.95, not 0.0"),
        ({"auto": {"target_ratio": float("nan")}, **LIMITS}, "above 0 and below 1, such as 0.95, not nan"),
        ({"auto": {"target_ratio": "95%"}, **LIMITS}, "above 0 and below 1, such as 0.95, not '95%'"),
        ({"auto": {"max_latency": "20m"}, **LIMITS}, 'write auto = "knee", and limit the latency by at_most and max_hold'),
        ({"auto": {"target_ratio": 0.9, "max_latency": "20m"}, **LIMITS}, "max_latency is no aim"),
        ({"auto": "knee", "field": "wait", **LIMITS}, "auto and field exclude each other"),
        ({"field": "wait", "default": "1m", **LIMITS}, "at_least: Extra inputs are not permitted"),
        ({"auto": "knee", "at_least": "2h", "at_most": "1h"}, "quiet_period.at_least must not be longer than at_most"),
        ({"auto": "knee", "at_least": "0s", "at_most": "1h"}, "quiet_period.at_least must be at least 1ms"),
        ({"auto": "knee", "default": "9s", **LIMITS}, "quiet_period.default must be from at_least to at_most"),
        ({"auto": "knee", "default": "2h", **LIMITS}, "quiet_period.default must be from at_least to at_most"),
        ({"auto": "knee", "default": "soon", **LIMITS}, "default: 'soon' is not a duration"),
        ({"auto": "knee", "at_least": "10s", "at_most": "7h"}, "quiet_period is longer than max_hold"),
    ],
)
def test_quiet_period_that_sets_itself_needs_an_aim_and_limits(quiet_period: Any, fault: str) -> None:
    assert fault in faults(quiet_period=quiet_period)


@pytest.mark.parametrize(
    ("at_least", "at_most", "default_ms"),
    [("10s", "1h", 180_000), ("10s", "10s", 10_000), ("7s", "7500ms", 7_000), ("1ms", "6h", 4_000), ("5ms", "7ms", 5)],
)
def test_quiet_period_that_sets_itself_begins_near_the_geometric_mean_of_its_limits(
    at_least: str, at_most: str, default_ms: int
) -> None:
    declared = fold(quiet_period={"auto": "knee", "at_least": at_least, "at_most": at_most})

    assert default_ms == declared.default_quiet_period_ms


def test_quiet_period_that_sets_itself_is_declared_as_a_table_or_an_object() -> None:
    rule = AutoQuietPeriod(auto={"target_ratio": 0.95}, at_least="10s", default="15m", at_most="1h")
    declared = fold(quiet_period={"auto": {"target_ratio": 0.95}, "default": "15m", **LIMITS})

    assert rule == declared.auto_quiet
    assert (3_600_000, 900_000) == (declared.quiet_period_ms, declared.default_quiet_period_ms)
    assert "sets itself by target_ratio 0.95, 10s at least, 15m at first, 1h at most" == str(rule)


def test_name_may_not_end_with_a_newline() -> None:
    with pytest.raises(ValueError, match="the name"):
        fold(name="f\n")
