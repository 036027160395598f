"""Every broken variant is caught: it fails a schedule that the product passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import patch

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from streams_app.read_store.core import merge as merging
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell
from tests.simulation import counting, mutants
from tests.simulation.catching import first_catch
from tests.simulation.counting import Counting
from tests.simulation.folding import Folding
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_blocks import BLOCKS
from tests.simulation.mutants_closing import LIMITS, STARTS
from tests.simulation.mutants_cursor import CURSOR
from tests.simulation.mutants_delivery import CLAIMS, DELIVERY, SCRIPTS
from tests.simulation.mutants_dropped_groups import DROPS
from tests.simulation.mutants_duplicates import DUPLICATES
from tests.simulation.mutants_packed import PACKED
from tests.simulation.mutants_protocol import COMMITS, FENCES_AND_RANGES
from tests.simulation.mutants_read_store import READ_STORE
from tests.simulation.mutants_toy import TOY
from tests.simulation.toy import COUNT
from tests.simulation.world import run_schedule

SCHEDULES = 80
"""Schedules for each mix of a mutant before it counts as a survivor."""

PROTOCOL = (
    *FENCES_AND_RANGES,
    *COMMITS,
    *SCRIPTS,
    *BLOCKS,
    *PACKED,
    *CURSOR,
    *DELIVERY,
    *CLAIMS,
    *STARTS,
    *LIMITS,
    *DROPS,
    *DUPLICATES,
)


@pytest.mark.parametrize("mutant", PROTOCOL, ids=lambda mutant: mutant.name)
def test_broken_variant_is_caught(client: redis.Redis, mutant: Mutant) -> None:
    assert first_catch(client, mutant, Folding, SCHEDULES) is not None, f"survived: {mutant.why}"


@pytest.mark.parametrize("mutant", TOY, ids=lambda mutant: mutant.name)
def test_broken_delivery_is_caught_with_any_processor(client: redis.Redis, mutant: Mutant) -> None:
    assert first_catch(client, mutant, Counting, SCHEDULES) is not None, f"survived: {mutant.why}"


def test_processor_that_does_not_compare_its_fence_is_caught(client: redis.Redis) -> None:
    careless = COUNT.replace("local refused = refusal()", "arg.fence = nil\nlocal refused = refusal()")
    with patch.object(counting, "COUNT", careless):
        broken = [run_schedule(client, "lossy rollback:3", seed, subject=Counting) for seed in range(20)]

    assert careless != COUNT
    assert any(outcome.violations for outcome in broken)


def test_names_of_broken_variants_are_unique() -> None:
    names = [mutant.name for mutant in (*PROTOCOL, *TOY, *READ_STORE)]

    assert sorted(set(names)) == sorted(names)


def test_mutant_is_reverted_after_its_block_and_an_outdated_one_is_rejected() -> None:
    (mutant,) = (mutant for mutant in FENCES_AND_RANGES if mutant.name == "no chain rule")
    stale = Mutant("stale", "", (), (mutants.Change("delivery.offset_metadata:raised", "no such text", ""),))
    before = merging.merge.__code__, mutant.function().__code__
    with mutant.applied():
        assert before[1] is not mutant.function().__code__
    with pytest.raises(LookupError, match="0 times"), stale.applied():
        pass

    assert before == (merging.merge.__code__, mutant.function().__code__)


# The read store

cells = st.builds(Cell, st.just("f"), st.sampled_from("ab"), st.sampled_from("xy"))
logs = st.dictionaries(st.tuples(cells, st.integers(0, 6)), st.integers(0, 2), max_size=12).map(
    lambda drawn: [CellChange(cell, version, value) for (cell, version), value in drawn.items()]
)


def applied(store: dict[Cell, StoredCell], changes: Sequence[CellChange]) -> None:
    merged = merging.merge(store, merging.newest(changes))
    for change in merged.written:
        store[change.cell] = StoredCell(change.version, change.value)
    for change in merged.confirmed:
        store[change.cell] = StoredCell(change.version, store[change.cell].value)


def converges() -> Callable[[], None]:
    """Check for any order and any batches that every cell ends with its newest value, and never goes back."""

    @settings(max_examples=300, database=None, derandomize=True, deadline=None)
    @given(logs, st.randoms(use_true_random=False), st.integers(1, 4))
    def check(log: list[CellChange], random, size: int) -> None:
        delivered = log + random.sample(log, len(log) // 2)
        random.shuffle(delivered)
        store: dict[Cell, StoredCell] = {}
        for begin in range(0, len(delivered), size):
            before = dict(store)
            applied(store, delivered[begin : begin + size])
            assert all(store[cell].version >= old.version for cell, old in before.items())
        newest = {
            change.cell: StoredCell(change.version, change.value) for change in sorted(log, key=lambda change: change.version)
        }
        assert newest == store

    return check


def test_read_store_converges() -> None:
    converges()()


@pytest.mark.parametrize("mutant", READ_STORE, ids=lambda mutant: mutant.name)
def test_broken_read_store_is_caught(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        converges()()
