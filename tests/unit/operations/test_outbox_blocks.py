"""Blocks of the outbox: their records, and what is left of them without some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.folding.core.record import SealedGroup
from streams_app.operations.outbox_blocks import packed_records, without
from tests.helpers.folding.outbox import block_of, sealed_group

RECORDS = st.lists(st.builds(sealed_group, st.sampled_from(["anna", "ben", "cleo"]), st.integers(0, 2**53)), min_size=1, max_size=9)


@given(RECORDS, st.sets(st.sampled_from([b"sanna", b"sben"])))
def test_block_loses_only_the_records_that_are_removed(records: list[SealedGroup], gone: set[bytes]) -> None:
    left = [record for record in records if record.member not in gone]
    found = without(block_of(records), lambda record: record.member in gone)

    if len(left) == len(records):
        assert found is None
    else:
        lowest = min((record.first_offset for record in left), default=0)
        assert (block_of(records), block_of(left), lowest, len(records) - len(left)) == found


@given(RECORDS)
def test_block_is_split_into_its_packed_records(records: list[SealedGroup]) -> None:
    assert [block_of([record]) for record in records] == packed_records(block_of(records))


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x9a\xa5sa", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_records_before_the_damage_of_a_block_are_found(damage: bytes) -> None:
    block = block_of([sealed_group("anna", 1), sealed_group("ben", 2)])

    assert 2 == len(packed_records(block + damage))
