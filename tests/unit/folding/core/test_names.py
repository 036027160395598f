"""Names without values mean the same as masks and as mappings, also if some of them have no bit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core import chunks as batch
from streams_app.folding.core import names as names_module
from streams_app.folding.core.chunks import Chunk
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.names import NameSet, mask_of, names_of_mask, shared_names, shared_names_of_bytes, size_of
from streams_app.folding.store.arguments import GroupPacker
from tests.helpers.folding.scripts import chunks_of, packed_sessions

BOUNDS = Bounds(10, 10_000, max_changed=100, sessions=True)
texts = st.sampled_from(["likes", "shares", "ä", "", '"\\', "views", "x" * 300])
sets = st.lists(texts, max_size=6, unique=True)


@pytest.fixture(autouse=True)
def _vocabulary_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in ("_of_text", "_of_bytes", "_of_mask", "_in_order"):
        monkeypatch.setattr(names_module, cache, names_module.Cache())
    monkeypatch.setattr(names_module, "_bits", {})


@given(st.lists(sets, max_size=8))
def test_name_set_is_equal_for_every_way_of_building_it(asked: Sequence[list[str]]) -> None:
    for names in asked:
        mask = mask_of(dict.fromkeys(names))
        assert mask is not None
        found = names_of_mask(mask)

        assert dict.fromkeys(names, b"") == found == shared_names(names) == shared_names_of_bytes([n.encode() for n in names])
        assert len(names) == mask.bit_count() == size_of(mask) == size_of(found)
        assert mask == mask_of(dict.fromkeys(reversed(names)))


@given(sets)
def test_name_set_is_serialized_like_its_names(names: list[str]) -> None:
    found = NameSet(names)

    assert dict.fromkeys(names, "") == msgpack.unpackb(found.packed)
    assert [part for name in names for part in (name, b"")] == found.fields
    assert sorted(names) == orjson.loads(found.listed)


def test_name_has_one_bit_if_two_threads_read_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2)

    class Bits(dict[str, int]):
        def get(self, name: str, default: Any = None) -> Any:
            found = super().get(name, default)
            with suppress(BrokenBarrierError):
                both.wait(0.2)  # until the other thread has found no bit, too, if it is not kept from that
            return found

    monkeypatch.setattr(names_module, "_bits", Bits())
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(mask_of, [{"likes": 1}, {"likes": 1, "shares": 1}])

    assert first is not None and second is not None
    assert ({"likes"}, {"likes", "shares"}) == (set(names_of_mask(first)), set(names_of_mask(second)))


def test_names_beyond_the_vocabulary_have_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "MASKED_NAMES", 2)

    assert [1, 3, None, 2] == [mask_of(dict.fromkeys(names)) for names in ("a", "ab", "abc", "b")]


@pytest.mark.parametrize("with_bits", [0, 50, 100])
def test_names_without_a_bit_count_towards_the_chunk_bound(monkeypatch: pytest.MonkeyPatch, with_bits: int) -> None:
    monkeypatch.setattr(names_module, "MASKED_NAMES", with_bits)
    monkeypatch.setattr(batch, "MAX_NAMES", 70)
    names: list[dict[str, int]] = [{f"n{number}": 1} for number in range(100)]
    events = [FoldEvent(at, 0, b"sa", mask_of(name) or name) for at, name in enumerate(names)]

    # If every name has a bit, there are few of them.
    assert ([100] if with_bits == 100 else [70, 30]) == [chunk.events for chunk in chunks_of(events, 100, keeps_values=False)]


def test_caches_are_cleared_before_they_grow_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "CACHED_TOTAL", 500)
    for number in range(100):
        mask = mask_of({f"a{number}": 1, f"b{number}": 1})
        assert mask is not None
        assert (
            {f"a{number}", f"b{number}"}
            == set(names_of_mask(mask))
            == set(shared_names_of_bytes([b"a%d" % number, b"b%d" % number]))
        )
        for cache in (names_module._of_text, names_module._of_bytes, names_module._of_mask, names_module._in_order):
            assert len(cache) <= 10


def test_sets_of_many_names_are_not_cached() -> None:
    many = {f"n{number}": 1 for number in range(names_module.CACHED_NAMES + 1)}
    mask = mask_of(many)
    assert mask is not None

    assert many.keys() == names_of_mask(mask).keys() == shared_names(many).keys()
    assert not names_module._of_text
    assert not names_module._of_mask
    assert not names_module._in_order


@given(
    st.lists(st.tuples(st.integers(0, 15), st.sampled_from([b"sa", b"sb"]), sets, st.booleans()), min_size=1, max_size=30),
    st.integers(0, 7),
)
def test_events_fold_to_the_same_groups_with_masks_and_with_mappings(
    drawn: Sequence[tuple[int, bytes, list[str], bool]], with_bits: int
) -> None:
    plain, mixed, clock = [], [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "MASKED_NAMES", with_bits)
        patch.setattr(names_module, "_bits", {})
        patch.setattr(names_module, "_of_mask", names_module.Cache())
        patch.setattr(names_module, "_in_order", names_module.Cache())
        for offset, (step, group, names, is_masked) in enumerate(drawn):
            clock += step
            event = FoldEvent(offset, clock, group, dict.fromkeys(names, 1))
            mask = mask_of(event.changed) if is_masked else None
            plain.append(event)
            mixed.append(event if mask is None else event._replace(names=mask))
        expected, found, of_mappings = (
            _arguments(list(chunks_of(events, len(events), cap_ms=10_000, session_gap_ms=10, keeps_values=keeps)))
            for events, keeps in ((plain, True), (mixed, False), (plain, False))
        )

    assert expected == found == of_mappings


def _arguments(chunks: list[Chunk]) -> list[object]:
    """Return the arguments of the scripts, regardless of the order of names."""
    found: list[object] = []
    for chunk in chunks:
        packed = GroupPacker(BOUNDS, b"e", 4, keeps_values=False).groups(chunk, sorted(chunk.groups), chunk.clock_ms, 0, {})
        found += packed.values[0::2]
        for rest in packed.values[1::2]:
            runs = [] if not rest else [rest] if isinstance(rest[0], int) else rest
            found += [(run[:4], dict(zip(run[4::2], run[5::2], strict=True))) for run in runs]
        found += packed.sealed
        for sessions in packed_sessions(packed):
            for *span, record in sessions:
                *numbers, names = msgpack.unpackb(record, raw=True)
                found.append((span, numbers, names))
    return found
