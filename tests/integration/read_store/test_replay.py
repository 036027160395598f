"""Every read store has the same final state for any order of changes, any duplicates and any batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams_app.read_store.core.merge import Cell, CellChange, MergeResult, StoredCell, merge, newest
from streams_app.read_store.postgresql import groups as postgresql_groups
from streams_app.read_store.sqlite import groups as sqlite_groups
from tests.helpers.read_store.stores import StoreHarness, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
FOLDS = itertools.count()
GONE = 3
"""The value of a name that the source does not know."""

changes = st.builds(
    lambda group, name, version, value: CellChange(Cell("f", group, name), version, None if value == GONE else value),
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["likes", "shares", "n1"]), st.integers(0, 30), st.integers(0, GONE),
)  # fmt: skip


@st.composite
def topics(draw: st.DrawFn) -> list[list[CellChange]]:
    """Draw batches of what was emitted, with parts repeated and in any order."""
    emitted = draw(st.lists(changes, max_size=40, unique_by=lambda change: (change.cell, change.version)))
    duplicates = draw(st.lists(st.sampled_from(emitted), max_size=20)) if emitted else []
    arrived = draw(st.permutations(emitted + duplicates))
    cuts = sorted(draw(st.lists(st.integers(0, len(arrived)), max_size=4)))
    return [arrived[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(arrived)])]


def expected(batches: Sequence[Sequence[CellChange]]) -> dict[tuple[str, str], tuple[Any, int]]:
    """Compute by brute force what the newest record has for each cell."""
    found: dict[tuple[str, str], CellChange] = {}
    for change in itertools.chain.from_iterable(batches):
        newest_change = found.setdefault(change.cell[1:], change)
        if change.version > newest_change.version:
            found[change.cell[1:]] = change
    return {cell: (change.value, change.version) for cell, change in found.items()}


async def state(harness: StoreHarness, batches: Iterable[Sequence[CellChange]]) -> dict[tuple[str, str], tuple[Any, int]]:
    """Return the final state of the store; every call has a fold of its own."""
    fold = f"f{next(FOLDS)}"
    for batch in batches:
        await write(harness.store, [replace(change, cell=change.cell._replace(fold=fold)) for change in newest(batch)])
    return {(group, name): (value, version) for group, name, value, version, _ in await harness.rows(fold)}


def shown(harness: StoreHarness, batches: Sequence[Sequence[CellChange]]) -> dict[tuple[str, str], tuple[Any, int]]:
    """Return what :func:`expected` computes, in the format of :meth:`StoreHarness.rows`."""
    return {
        cell: (None if value is None else harness.in_rows(value), version) for cell, (value, version) in expected(batches).items()
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=topics())
async def test_shuffled_duplicated_and_replayed_batches_end_in_the_brute_force_state(
    harness: StoreHarness, batches: list[list[CellChange]]
) -> None:
    assert shown(harness, batches) == await state(harness, [*batches, *batches])


# Broken version guards


def merged_without_a_guard(stored: Mapping[Cell, StoredCell], changes: Iterable[CellChange]) -> MergeResult:
    return MergeResult(written=list(changes))


def merged_by_the_version_of_the_group(stored: Mapping[Cell, StoredCell], changes: Iterable[CellChange]) -> MergeResult:
    newest_of = {
        cell[:2]: max(other.version for cell_of_group, other in stored.items() if cell_of_group[:2] == cell[:2]) for cell in stored
    }
    changes = list(changes)
    return merge(
        {change.cell: StoredCell(newest_of[change.cell[:2]], "?") for change in changes if change.cell[:2] in newest_of}, changes
    )


BROKEN = {
    "no guard": (merged_without_a_guard, "jsonb_each(excluded.versions) AS given WHERE true"),
    "one version a group": (
        merged_by_the_version_of_the_group,
        "jsonb_each(excluded.versions) AS given WHERE given.value::bigint > "
        "(SELECT COALESCE(max(version::bigint), -1) FROM jsonb_each_text(stored.versions) AS held (name, version))",
    ),
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    in_sqlite, in_postgresql = BROKEN[request.param]
    monkeypatch.setattr(sqlite_groups, "merge", in_sqlite)
    monkeypatch.setattr(postgresql_groups, "NEWER", in_postgresql)
    yield


@pytest.mark.parametrize("bare", ["sqlite-groups", "postgresql-groups"], indirect=True)
async def test_broken_version_guard_is_detected(broken: None, harness: StoreHarness) -> None:
    out_of_order = [[CellChange(LIKES, 5, 1)], [CellChange(SHARES, 3, 2)], [CellChange(LIKES, 4, 0)]]

    assert shown(harness, out_of_order) != await state(harness, out_of_order)


def test_brute_force_state_has_the_newest_versions() -> None:
    batches = [[CellChange(LIKES, 5, 1)], [CellChange(SHARES, 3, 2), CellChange(LIKES, 4, 0)]]

    assert {("a", "likes"): (1, 5), ("a", "shares"): (2, 3)} == expected(batches)
