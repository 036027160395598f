"""The text form of a fold's record shape, by which state of another definition is recognized."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.fold import Fold
from streams_app.folding.core.record import RecordShape

SHAPE = RecordShape("account-metrics", ("account_id",), "metrics", "names")
LAST = replace(SHAPE, keep="last")


@pytest.mark.parametrize("shape", [SHAPE, LAST, RecordShape("f", ("a", "b.c"), "ä", "last", "function", "function")])
def test_shape_survives_a_round_trip_through_redis(shape: RecordShape) -> None:
    assert shape == RecordShape.from_text(shape.to_text())


@pytest.mark.parametrize(
    "keep", [{"keep": "events"}, {"keep": "events", "fields": ("a", "b.c")}, {"keep": {"v": "sum", "u": "max"}, "changed": "m"}]
)
def test_declared_shape_of_events_and_aggregates_survives_a_round_trip_through_redis(keep: dict[str, Any]) -> None:
    declared = Fold(**{"name": "f", "source": "s", "group_key": "g", "quiet_period": "1s"} | keep)
    shape = RecordShape.of(declared)

    assert shape == RecordShape.from_text(shape.to_text())
    assert keep["keep"] == shape.declared_keep()


def test_changed_fields_or_aggregates_are_a_different_definition() -> None:
    common: dict[str, Any] = {"name": "f", "source": "s", "group_key": "g", "quiet_period": "1s"}
    events = [Fold(**common, keep="events", fields=fields) for fields in ((), ("a",), ("a", "b"))]
    keeps: tuple[Any, ...] = ("names", "last", {"u": "sum"}, {"u": "max"}, {"v": "sum"})
    sums = [Fold(**common, changed="m", keep=keep) for keep in keeps]

    assert 8 == len({RecordShape.of(one).to_text() for one in (*events, *sums)})
    assert RecordShape.of(sums[2]) == RecordShape.of(Fold(**common, changed="m", keep={"u": "sum"}))


@pytest.mark.parametrize("group_key", ["key", "@key", len, "account_id"])
def test_text_without_the_group_fields_is_no_declared_fold(group_key: Any) -> None:
    declared = RecordShape.of(declaration("f", group_key, "m", "names"))
    former = RecordShape.from_text(f'["f",["{declared.group_fields[0]}"],"m","names"]')

    assert declared != former
    assert ("f", declared.group_fields, "m", "names") == (former.fold, former.group_fields, former.changed, former.keep)


def test_function_named_like_a_field_is_a_different_definition() -> None:
    common: dict[str, Any] = {"name": "f", "source": "s", "quiet_period": timedelta(minutes=1)}
    declared = [
        Fold(group_key="a", changed="m", **common),
        Fold(group_key=len, group_as="a", changed="m", **common),
        Fold(group_key="a", changed=len, changed_as="m", **common),
        Fold(group_key=len, group_as="a", changed=len, changed_as="m", **common),
        Fold(group_key=len, group_as="b", changed=len, changed_as="m", **common),
    ]

    assert len(declared) == len({RecordShape.of(one).to_text() for one in declared})


def declaration(name: str, group_key: Any, changed: Any, keep: Any) -> Fold:
    return Fold(name=name, source="s", group_key=group_key, changed=changed, keep=keep, quiet_period=timedelta(minutes=1))


field_names = st.sampled_from(["key", "changed", "a", "b", "a.b", "b.a", 'a","b', "a@", "fields", "function"])
group_keys = st.one_of(
    st.just("@key"), st.just(len), field_names, st.lists(field_names, min_size=1, max_size=3, unique=True).map(tuple)
)
declarations = st.tuples(
    st.sampled_from(["f", "f-g"]), group_keys, st.one_of(field_names, st.just(len)), st.sampled_from(["names", "last"])
).filter(lambda given: _names_of(given[2], "changed")[0] not in _names_of(given[1], "key"))


def _names_of(declared: Any, of_functions: str) -> tuple[str, ...]:
    """Return the names as in records."""
    if callable(declared) or declared == "@key":
        return (of_functions,)
    return (declared,) if isinstance(declared, str) else declared


def meaning(declared: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what identifies the meaning of folded state: one field means the same as a list of it."""
    name, group_key, changed, keep = declared
    return name, (group_key,) if isinstance(group_key, str) else group_key, changed, keep


@given(declarations, declarations)
def test_shape_texts_are_equal_only_if_the_state_means_the_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    texts = [RecordShape.of(declaration(*declared)).to_text() for declared in (one, other)]

    assert (meaning(one) == meaning(other)) == (texts[0] == texts[1])
