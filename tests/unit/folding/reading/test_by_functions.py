"""Any value that user functions return or raise is folded or dead-lettered, and never stops a partition."""

from __future__ import annotations

import collections
import enum
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import RejectingComponent, dead_letter_of
from streams_app.fold import Fold
from streams_app.folding.core.closing import Bounds
from streams_app.folding.reading.reader import DecodedRange
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.store.arguments import GroupPacker
from streams_app.folding.store.codec import pack
from streams_app.settings import Limits
from tests.helpers.folding.scripts import chunks_of
from tests.helpers.kafka.records import Raw

BOUNDS = Bounds(1_000, 60_000)
EVENT = b'{"g":"a","m":{"x":1}}'


class Kind(enum.StrEnum):
    LIKES = "likes"


class TextlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("nor has it a text")


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


def fold(**options: Any) -> Fold:
    given = {"name": "f", "source": "s", "group_key": "g", "changed": "m", "quiet_period": "1m"} | options
    return Fold(**given)


def passed_on(declared: Fold, reading: DecodedRange) -> list[Any]:
    """Pack accepted events for Redis and make dead letters of rejected ones, as a worker does."""
    keeps_values = declared.keep == "last"
    packing = GroupPacker(BOUNDS, b"e", 1, keeps_values=keeps_values)
    for chunk in chunks_of(reading.events, 100, cap_ms=10**13, keeps_values=keeps_values):
        pack(packing.groups(chunk, sorted(chunk.groups), chunk.clock_ms, 0, {}).values)
    component = RejectingComponent("fold", declared.name, "app", declared.dead_letters)
    return [dead_letter_of(component, TP("s", 0), rejected, 0) for rejected in reading.rejected]


def read(declared: Fold, *values: bytes, limits: Limits | None = None) -> DecodedRange:
    records = [Raw(at, 1, b"a", value) for at, value in enumerate(values)]
    reading = reader_of(declared, limits or Limits()).read(records)
    passed_on(declared, reading)
    return reading


def generator(*names: str) -> Iterator[str]:
    yield from names
    raise LookupError("half-way")


def raising(error: BaseException) -> Any:
    def function(_: Any) -> Any:
        raise error

    return function


def always(value: Any) -> Any:
    return lambda _: value


LONE = "\ud800"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"decode": always({"g": LONE, "m": "x"})}, "'g': text that UTF-8", id="a decoded surrogate"),
        pytest.param({"group_key": always(LONE)}, "group_key: text that UTF-8", id="a surrogate as group key"),
        pytest.param({"group_key": ("g", "h"), "decode": always({"g": LONE, "h": 1})}, "'g', 'h': text that", id="among several"),
        pytest.param({"group_key": always(float("nan"))}, "group_key is nan, which", id="NaN as group key"),
        pytest.param({"group_key": always(float("-inf"))}, "group_key is -inf, which", id="Infinity as group key"),
        pytest.param({"decode": json.loads, "value": b'{"g":NaN,"m":"x"}'}, "'g' is nan, which is not a group", id="a decoded NaN"),
        pytest.param({"group_key": ("g", "h"), "decode": always({"g": float("inf"), "h": 1})}, "'g' is inf", id="a field"),
        pytest.param({"changed": always([LONE])}, "the name '\\ud800' is text that UTF-8", id="a surrogate as name"),
        pytest.param({"decode": always({"g": "a", "m": {LONE: 1}})}, "the name '\\ud800' is", id="a decoded surrogate as name"),
        pytest.param({"decode": always({"g": "a", "m": LONE})}, "the name '\\ud800' is text", id="a text that is a name"),
        pytest.param({"changed": always({1: "x"})}, "the name 1 is of type int, not str", id="a key that is no string"),
        pytest.param({"decode": always({"g": "a", "m": {None: 1}})}, "the name None is of type NoneType", id="a decoded key"),
        pytest.param({"changed": always({"x": b"y"}), "keep": "last"}, "the value of 'x' cannot be kept: ", id="bytes"),
        pytest.param({"changed": always({"x": Decimal("NaN")}), "keep": "last"}, "'x' cannot be kept: ", id="NaN"),
        pytest.param({"changed": always({"x": 10**4000}), "keep": "last"}, "'x' cannot be kept: ", id="more than 4000 digits"),
        pytest.param({"changed": always({"x": -(10**5000)}), "keep": "last"}, "'x' cannot be kept: ", id="more than 5000 digits"),
        pytest.param({"changed": always({"x": LONE}), "keep": "last"}, "'x' cannot be kept: ", id="a surrogate as value"),
        pytest.param({"changed": always({"y": 1, "x": [{1: 2}]}), "keep": "last"}, "'x' cannot be kept: ", id="a nested key"),
        pytest.param({"decode": always({"g": "a", "m": {"x": {1}}}), "keep": "last"}, "'x' cannot be kept: ", id="a decoded set"),
        pytest.param({"changed": always(generator("x"))}, "changed: LookupError: half-way", id="a generator that raises"),
        pytest.param({"changed": raising(ValueError(LONE))}, "changed: ValueError: \\ud800", id="an error text with a surrogate"),
        pytest.param({"changed": raising(TextlessError())}, "changed: TextlessError", id="an error without a text"),
        pytest.param({"changed": raising(StopIteration())}, "changed: StopIteration", id="an error that ends iterations"),
        pytest.param({"decode": raising(RecursionError("deep"))}, "decode: RecursionError: deep", id="a recursion"),
        pytest.param({"source_filter": always(Undecided())}, "source_filter: ValueError: neither", id="an answer that is none"),
    ],
)  # fmt: skip
def test_unfoldable_result_is_a_dead_letter_and_the_partition_continues(options: dict[str, Any], expected: str) -> None:
    value = options.pop("value", EVENT)
    reading = read(fold(**options), value)

    assert [] == reading.events
    assert ["user-error"] == [rejected.reason for rejected in reading.rejected]
    assert expected in reading.rejected[0].detail
    assert reading.rejected[0].detail.encode()


@pytest.mark.parametrize(
    ("options", "group", "names"),
    [
        pytest.param({"group_key": always(Kind.LIKES)}, b"slikes", {"x": 1}, id="a group that is a member of an enumeration"),
        pytest.param({"changed": always([Kind.LIKES])}, b"sa", {"likes": None}, id="names that are"),
        pytest.param({"changed": always({Kind.LIKES: 1})}, b"sa", {"likes": 1}, id="keys that are"),
        pytest.param({"changed": always(collections.OrderedDict(x=2))}, b"sa", {"x": 2}, id="another mapping"),
        pytest.param({"changed": always({"y", "x"})}, b"sa", {"x": None, "y": None}, id="a set"),
        pytest.param({"decode": always({"g": "a", "m": ("x", "y")})}, b"sa", {"x": None, "y": None}, id="a decoded tuple"),
        pytest.param({"changed": always({"x": 2**64 - 1})}, b"sa", {"x": 2**64 - 1}, id="the greatest integer"),
        pytest.param({"changed": always({"x": (1, None)})}, b"sa", {"x": [1, None]}, id="a tuple as value"),
        pytest.param(
            {"changed": always({"x": uuid.UUID(int=1)})}, b"sa", {"x": str(uuid.UUID(int=1))}, id="what JSON has a text for"
        ),
    ],
)
def test_any_json_value_is_folded(options: dict[str, Any], group: bytes, names: dict[str, Any]) -> None:
    reading = read(fold(keep="last", **options), EVENT)

    assert [] == reading.rejected
    assert [(group, names)] == [(event.group, event.changed) for event in reading.events]


def test_discarded_values_may_have_any_type() -> None:
    reading = read(fold(changed=always({"x": Decimal(1), "y": object()})), EVENT)

    assert [["x", "y"]] == [sorted(event.changed) for event in reading.events]


def test_value_mutated_later_by_a_function_is_unaffected() -> None:
    mutable: dict[str, Any] = {"x": []}

    def changed(_: Any) -> Any:
        mutable["x"].append(len(mutable["x"]))
        return mutable

    reading = read(fold(changed=changed, keep="last"), EVENT, EVENT)

    assert [{"x": [0]}, {"x": [0, 1]}] == [event.changed for event in reading.events]


def test_function_value_may_not_exceed_the_event_size() -> None:
    reading = read(fold(changed=always({"x": "y" * 100}), keep="last"), EVENT, limits=Limits(value_bytes=90))

    assert ["too-large"] == [rejected.reason for rejected in reading.rejected]


def test_repeated_name_does_not_excuse_a_key_that_resembles_it() -> None:
    answers = iter([["1"], {1: 1}, ["1", LONE], ["1"]])
    reading = read(fold(changed=lambda _: next(answers)), *[EVENT] * 4)

    assert [0, 3] == [event.offset for event in reading.events]
    assert [1, 2] == [rejected.record.offset for rejected in reading.rejected]


def test_long_error_text_is_truncated() -> None:
    reading = read(fold(changed=raising(ValueError("x" * 1_000_000))), EVENT)

    assert len(reading.rejected[0].detail) < 2_000


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(st.characters(), max_size=4)
    | st.binary(max_size=3) | st.decimals() | st.sampled_from([Kind.LIKES, LONE, "a", "x", object(), Undecided()]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=2) | st.integers() | st.none() | st.just(LONE), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(
    st.fixed_dictionaries({}, optional={"g": anything, "m": anything}) | anything,
    anything,
    anything,
    st.lists(st.sampled_from(["decode", "source_filter", "group_key", "changed"]), min_size=1, unique=True),
    st.sampled_from(["names", "last"]),
)
def test_any_function_result_is_folded_rejected_or_filtered(
    event: Any, group: Any, changed: Any, own: list[str], keep: str
) -> None:
    functions = {"decode": always(event), "source_filter": always(group), "group_key": always(group), "changed": always(changed)}
    declared = fold(keep=keep, **{name: functions[name] for name in own})
    reading = read(declared, EVENT)

    assert len(reading.events) + len(reading.rejected) <= 1
    assert "source_filter" in own or 1 == len(reading.events) + len(reading.rejected)
