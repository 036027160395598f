"""Current values from a user's function: its arguments, its allowed results, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples import served
from streams_app.codec import member_of
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.function_answer import calls_for, group_of, with_answer
from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.core.record import group_column
from streams_app.read_store.registry import open_source
from streams_app.settings import ReadStoreSettings, Settings
from tests.unit.read_store.python_source import LIKES, SHARES, opened

pytestmark = pytest.mark.timeout(60)


async def values(function: Callable[..., Any], *changes: CellChange) -> list[Any]:
    async with opened(function) as source:
        return [change.value for change in await source.current(changes)]


# Arguments


async def test_function_is_called_once_for_all_groups_and_names_of_a_fold() -> None:
    calls: list[Any] = []

    async def current(fold: str, pairs: Any) -> dict[Any, Any]:
        calls.append((fold, pairs))
        return {pair: len(calls) for pair in pairs}

    other = CellChange(Cell("g", "b", "likes"), 1)

    assert [1, 1, 2] == await values(current, LIKES, other, SHARES)
    assert [("f", [("a", "likes"), ("a", "shares")]), ("g", [("b", "likes")])] == calls


async def test_function_need_not_be_async() -> None:
    assert [1] == await values(lambda fold, pairs: dict.fromkeys(pairs, 1), LIKES)


async def test_missing_pair_means_deleted() -> None:
    assert [None, 3] == await values(lambda fold, pairs: {("a", "shares"): 3}, LIKES, SHARES)


async def test_pair_without_a_name_deletes_the_group() -> None:
    other = CellChange(Cell("f", "b", "likes"), 1)
    async with opened(lambda fold, pairs: {("a", None): None, ("b", "likes"): 2}) as source:
        found = await source.current([LIKES, SHARES, other])

    assert [(None, True), (None, True), (2, False)] == [(change.value, change.is_group_gone) for change in found]


async def test_groups_equal_in_python_are_distinguished_when_one_is_deleted() -> None:
    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        return {(group, None) if group is True else (group, name): None if group is True else 1 for group, name in pairs}

    async with opened(current) as source:
        found = await source.current([CellChange(Cell("f", "1", "likes"), 1), CellChange(Cell("f", "true", "shares"), 1)])

    assert [(1, False), (None, True)] == [(change.value, change.is_group_gone) for change in found]


@pytest.mark.parametrize("group", [("a",), ("17",), (17,), (1.5,), (True,), ("a", 1), ("true",), ("", '"'), ("{}",), ("null",)])
def test_group_has_its_type_from_the_events(group: tuple[Any, ...]) -> None:
    found = group_of(group_column(member_of(group)))

    assert (type(group[0]), group[0]) == ((type(found), found) if len(group) == 1 else (type(found[0]), found[0]))  # type: ignore[index]  # of several fields it is a tuple
    assert len(group) == 1 or group == found


scalars = st.text(max_size=3) | st.integers(-3, 3) | st.booleans() | st.sampled_from([0.5, 1.5])


@example([([1], "likes"), ([True], "likes"), (["1"], "likes")])
@given(st.lists(st.tuples(st.lists(scalars, min_size=1, max_size=2), st.sampled_from(["likes", "1"])), max_size=12))
def test_each_cell_receives_its_own_value_for_any_groups(pairs: list[tuple[list[Any], str]]) -> None:
    cells = list(dict.fromkeys(Cell("f", group_column(member_of(tuple(group))), name) for group, name in pairs))
    changes = [CellChange(cell, number) for number, cell in enumerate(cells)]
    calls = calls_for(changes)
    answered = [one for asked in calls for one in with_answer(asked, {pair: asked[pair].version for pair in asked})]

    assert {cell: number for number, cell in enumerate(cells)} == {one.cell: one.value for one in answered}


async def test_function_runs_on_one_loop_of_its_own() -> None:
    loops = []

    async def current(fold: str, pairs: Any) -> dict[Any, Any]:
        loops.append(asyncio.get_running_loop())
        return {}

    async with opened(current) as source:
        await source.current([LIKES])
        await source.current([LIKES])

    assert loops[0] is loops[1]
    assert loops[0] is not asyncio.get_running_loop()


async def test_check_calls_the_function_without_pairs_for_each_fold() -> None:
    calls: list[Any] = []

    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        calls.append((fold, pairs))
        return {}

    async with opened(current, folds=("f", "g")) as source:
        await source.check()

    assert [("f", []), ("g", [])] == calls


# Results


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1), (1.5, 1.5), (True, True), ("ä", "ä"), (b"\xff", b"\xff"), (None, None), (Decimal("1.50"), Decimal("1.50")),
        (Decimal(3), 3), ({"a": [1, None]}, JsonText('{"a":[1,null]}')), ((1, 2), JsonText("[1,2]")), (2**70, 2**70),
        (date(2026, 11, 23), "2026-11-23"), ([date(2026, 11, 23)], JsonText('["2026-11-23"]')),
    ],
)  # fmt: skip
async def test_types_of_values_are_preserved(value: Any, expected: Any) -> None:
    ((found),) = await values(lambda fold, pairs: {("a", "likes"): value}, LIKES)

    assert (type(expected), expected) == (type(found), found)


endless: list[Any] = []

endless.append(endless)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, r"returned None; expected a dict \(group, name\) → value"),
        ([("a", "likes", 1)], "returned list; expected a dict"),
        ({("b", "likes"): 1}, r"returned 1 pairs it was not asked for, such as \(str, str\)"),
        ({(1, "likes"): 1, "a": 2}, r"returned 2 pairs it was not asked for, such as \(int, str\); .* such as \(str, str\)"),
        ({("b", None): None}, r"returned 1 pairs it was not asked for, such as \(str, None\)"),
        ({("a", None): 1}, "a value for a group that it says is gone"),
        ({("a", None): None, ("a", "likes"): 1}, "a value for a group that it says is gone"),
        ({("a", "likes"): float("nan")}, "a value that is not a finite number"),
        ({("a", "likes"): Decimal("NaN")}, "a value that is not a finite number"),
        ({("a", "likes"): float("-inf")}, "a value that is not a finite number"),
        ({("a", "likes"): [float("nan")]}, "cannot be written as JSON"),
        ({("a", "likes"): {"x": Decimal("Infinity")}}, "cannot be written as JSON: it contains a number that is not finite"),
        ({("a", "likes"): {1: 2}}, "cannot be written as JSON"),
        ({("a", "likes"): {"x": object()}}, "cannot be written as JSON: object is not JSON"),
        ({("a", "likes"): endless}, "cannot be written as JSON: Circular reference"),
        ({("a", "likes"): {1, 2}}, "a value of type set; expected number, text"),
        ({("a", "likes"): object}, "a value of type type; expected number"),
    ],
)
async def test_invalid_result_is_reported_and_retried(answer: Any, message: str) -> None:
    with pytest.raises(TryAgainError, match=rf"read_stores\.dashboard\.current \(.*lambda.*\) .*{message}"):
        await values(lambda fold, pairs: answer, LIKES)


async def test_error_does_not_reveal_the_result() -> None:
    with pytest.raises(TryAgainError) as caught:
        await values(lambda fold, pairs: {("canary", "canary"): "canary"}, LIKES)

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_function_error_is_reported_with_its_location_and_the_next_call_is_made(error: BaseException) -> None:
    faults = [error]

    async def current(fold: str, pairs: Any) -> dict[Any, Any]:
        if faults:
            raise faults.pop()
        return {("a", "likes"): 1}

    async with opened(current) as source:
        with pytest.raises(TryAgainError, match=rf"raised {type(error).__name__}: .*test_python_source\.py:\d+\)"):
            await source.current([LIKES])
        assert [1] == [change.value for change in await source.current([LIKES])]


# Settings


@pytest.mark.parametrize("given", [{"source": "python"}, {"source": "carried", "current": print}])
def test_function_and_source_require_each_other(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="need each other"):
        ReadStoreSettings.model_validate({"name": "d", "url": "sqlite:///x.db", "folds": ["f"], **given})


def test_settings_file_cannot_name_a_function(tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(
        'app_id = "a"\n[folds.f]\nsource = "s"\ngroup_key = "g"\nchanged = "c"\nquiet_period = "1s"\n'
        '[read_stores.d]\nurl = "sqlite:///x.db"\nfolds = ["f"]\nsource = "python"\ncurrent = "my.function"\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(file, {})

    assert ["read_stores.d.current: a function, only in Python"] == caught.value.faults


def test_documentation_shows_the_example() -> None:
    root = Path(__file__).parents[3]
    _, _, program = (root / "examples" / "served.py").read_text("utf-8").partition('"""\n\n')

    assert f"```python\n{program}```" in (root / "docs" / "reference" / "read-stores.md").read_text("utf-8")


async def test_example_returns_the_existing_values() -> None:
    (store,) = served.settings.read_stores
    source = open_source(store)
    wanted = [Cell("account-metrics", "account_1", "shares"), Cell("account-metrics", "account_2", "shares")]

    assert [3, None] == [change.value for change in await source.current([CellChange(cell, 1) for cell in wanted])]
    await source.close()
