"""Values aggregated by name are exact, however they are split into runs."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.errors import BadEventError
from streams_app.exact_json import decode, encode
from streams_app.folding.core.aggregates import Aggregates, combined, json_of, stored_value

integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
EXACT = Context(prec=1_000)


def stored(kind: Any, values: list[Any]) -> bytes:
    """Return what a run of these values stores."""
    aggregates, names = Aggregates.of({"x": kind}), dict[str, Any]()
    for value in values:
        aggregates.check({"x": value})
        aggregates.join(names, {"x": value})
    return stored_value(names["x"])


def in_two_parts(kind: Any, values: list[Any], cut: int) -> Any:
    """Return the value in a record whose group was written by two runs."""
    parts = [stored(kind, part) for part in (values[:cut], values[cut:]) if part]
    return json_of(reduce(combined, parts))


@given(st.lists(integers, min_size=1, max_size=20), st.integers(0, 20))
def test_sum_of_integers_is_exact_beyond_64_bits(values: list[int], cut: int) -> None:
    assert str(sum(values)).encode() == in_two_parts("sum", values, cut)


def nearest(exact: Fraction) -> bytes:
    try:
        return orjson.dumps(float(exact))
    except OverflowError:
        return str(exact.numerator // exact.denominator).encode()


@given(st.lists(st.one_of(integers, floats), min_size=1, max_size=20), floats, st.integers(0, 21))
def test_sum_with_floats_is_the_double_nearest_to_the_exact_sum(values: list[Any], last: float, cut: int) -> None:
    values = [*values, last]
    exact = sum((Fraction(value) for value in values), Fraction(0))

    assert nearest(exact) == in_two_parts("sum", values, cut)


def test_sum_is_independent_of_the_order_of_floats() -> None:
    values = [1e308, 1e308, 1.0, -1e308, -1e308, 0.1]

    assert b"1.1" == in_two_parts("sum", values, 3) == in_two_parts("sum", values[::-1], 2)


def test_sum_of_the_largest_doubles_is_an_integer_rather_than_infinity() -> None:
    assert str(2 * int(1.7e308)).encode() == in_two_parts("sum", [1.7e308, 1.7e308], 1)


def test_sum_beyond_a_double_can_be_decoded_again() -> None:
    assert int(1e308) + int(1.7e308) == decode(in_two_parts("sum", [1e308, 1.7e308], 1))


decimals = st.integers(-(10**60), 10**60).map(lambda value: decode(f"{Decimal(value).scaleb(-40, EXACT):f}"))
halves = st.integers(-99, 99).map(lambda value: value * 0.5)
long = st.one_of(decimals, st.integers(-(10**400), 10**400), halves)


@given(st.lists(st.one_of(decimals, st.integers(-(10**300), 10**300), halves), max_size=12), st.integers(0, 12))
def test_sum_with_a_decimal_that_no_double_keeps_is_exact(values: list[Any], cut: int) -> None:
    values = [*values, Decimal("12345678901234567.89")]
    exact = sum((Fraction(value) for value in values), Fraction(0))

    assert exact == Fraction(Decimal(in_two_parts("sum", values, cut).decode()))


@pytest.mark.parametrize(
    "values",
    [[10**400, "12345678901234567.89"], ["9" * 308 + ".5"] * 21, [-(10**310), "0." + "1" * 300]],
    ids=["integer", "decimals", "below"],
)
def test_sum_with_a_decimal_beyond_a_double_is_an_integer_that_can_be_decoded_again(values: list[Any]) -> None:
    exact = [Decimal(value) for value in values]
    whole = sum(map(Fraction, exact), Fraction(0)).__floor__()

    assert whole == decode(in_two_parts("sum", [int(value) if value == int(value) else value for value in exact], 1))


def test_sum_of_decimals_counts_a_double_as_it_is_written_up_to_the_digits_of_the_others() -> None:
    values = [Decimal("12345678901234567.89"), 0.1, 0.2, 1e-5]

    assert b"12345678901234568.19001" == in_two_parts("sum", values, 1) == in_two_parts("sum", values[::-1], 2)


def test_sum_reads_what_an_earlier_version_has_stored() -> None:
    former = msgpack.packb(["+", 1, 42, 1, 43, -2, 44, 3, 45, 7])

    assert former is not None
    assert orjson.loads(json_of(former)) == orjson.loads(json_of(combined(former, stored("sum", [0]))))


@given(
    st.lists(st.one_of(integers, floats, decimals, st.integers(-(10**400), 10**400)), min_size=1, max_size=20), st.integers(0, 20)
)
def test_mean_is_the_double_nearest_to_the_exact_mean(values: list[Any], cut: int) -> None:
    found = in_two_parts("mean", values, cut)

    assert nearest(sum(map(Fraction, values), Fraction(0)) / len(values)) == found
    assert decode(found) is not None


@pytest.mark.parametrize(
    ("values", "mean"), [([1, 2], b"1.5"), ([2, 2], b"2.0"), ([0.1, 0.2, 0.3], b"0.2"), ([-1], b"-1.0"), ([0], b"0.0")]
)
def test_mean_of_usual_numbers(values: list[Any], mean: bytes) -> None:
    assert {mean} == {in_two_parts("mean", values, cut) for cut in range(len(values))}


@given(
    st.lists(st.sampled_from([None, True, 1, 1.0, "é", [], {"a": [1]}, Decimal("12345678901234567.89")]), min_size=1),
    st.integers(0, 9),
)
def test_first_value_of_any_type_is_kept_as_received(values: list[Any], cut: int) -> None:
    assert encode(values[0]) == in_two_parts("first", values, cut)


ordered = st.lists(st.one_of(integers, floats, long, st.text(max_size=3)), min_size=1, max_size=12)


def place(value: Any) -> tuple[int, Any]:
    if isinstance(value, str):
        return 1, value.encode()
    # A float below 2^53 and a decimal are compared as they are written.
    return 0, Fraction(repr(value)) if isinstance(value, float) and abs(value) < 2**53 else Fraction(value)


NEIGHBOURS = [
    "1" + "0" * 400, "1" + "0" * 399 + "1", "-1" + "0" * 400, "1" + "0" * 308 + ".5", "1.00000000000000000001", "1e-400", "-1e-400",
    "1." + "0" * 60 + "1", "1." + "0" * 60 + "11", "-1." + "0" * 60 + "1", "-1." + "0" * 60 + "11", "0", "1", "-1", "0.1", "-0.1",
    "0.10000000000000000001", "0.1000000000000000055", "0.09999999999999999999", "-0.10000000000000000001",
    "1180591620717411303424",
    "1180591620717411303425", "1180591620717411303424.5", "12345678901234567.89", "12345678901234567.90", "12345678901234568",
]  # fmt: skip
"""Numbers of which some have the same nearest double."""


@pytest.mark.parametrize("first", NEIGHBOURS, ids=lambda value: str(value)[:20])
def test_maximum_of_neighbours_is_exact(first: str) -> None:
    for second in NEIGHBOURS:
        values, written = [decode(first), decode(second)], [Decimal(first), Decimal(second)]
        for cut in (1, 2):
            assert max(written) == Decimal(in_two_parts("max", values, cut).decode())
            assert min(written) == Decimal(in_two_parts("min", values, cut).decode())


@given(ordered, st.integers(0, 12))
def test_maximum_and_minimum_compare_numbers_exactly_and_take_text_as_larger(values: list[Any], cut: int) -> None:
    values = [value for value in values if not isinstance(value, str) or value.isprintable()] or [1]
    largest, smallest = max(map(place, values)), min(map(place, values))

    assert largest == place(decode(in_two_parts("max", values, cut)))
    assert smallest == place(decode(in_two_parts("min", values, cut)))


def test_maximum_distinguishes_neighbouring_integers_with_the_same_double() -> None:
    assert b"9007199254740993" == in_two_parts("max", [9007199254740993, 9007199254740992], 1)
    assert b"9007199254740992" == in_two_parts("min", [9007199254740993, 9007199254740992], 1)


def test_later_of_equal_values_is_kept() -> None:
    assert b"1.0" == in_two_parts("max", [1, 1.0], 1)
    assert b"1" == in_two_parts("min", [1.0, 1], 1)


def test_count_counts_events_with_any_value() -> None:
    assert b"3" == in_two_parts("count", [None, "x", {"y": [1]}], 2)


def test_unlisted_names_keep_their_last_value_unless_others_says_otherwise() -> None:
    assert {"a": 1} == Aggregates.of({"x": "sum"}).begun({"a": 1})
    assert b"1" == json_of(stored_value(Aggregates.of({"*": "sum"}).begun({"a": 1})["a"]))


def test_last_value_replaces_the_previous_one() -> None:
    assert b"[2]" == combined(b"[1]", b"[2]")


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        ("sum", "5", "'x' is a JSON str, and its sum needs a number"),
        ("sum", None, "'x' is missing or null, and its sum needs a number"),
        ("sum", True, "'x' is a JSON bool, and its sum needs a number"),
        ("mean", "5", "'x' is a JSON str, and its mean needs a number"),
        ("mean", Decimal("0." + "1" * 301), "'x' has more than 300 digits after the point, too many for its mean"),
        ("max", [1], "'x' is a JSON list, and its maximum needs a number or text"),
        ("min", None, "'x' is missing or null, and its minimum needs a number or text"),
        ("min", False, "'x' is a JSON bool, and its minimum needs a number or text"),
    ],
)
def test_value_that_an_aggregate_cannot_take_is_named(kind: Any, value: Any, fault: str) -> None:
    with pytest.raises(BadEventError) as caught:
        stored(kind, [value])

    assert ("no-value", fault) == (caught.value.reason, caught.value.detail)
