"""The partition of a key must be that of every other Kafka client."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from streams_app.kafka.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    # From Kafka's own test (UtilsTest.testMurmur2), as unsigned numbers.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert expected % 2**32 == murmur2(key)


@given(st.binary(max_size=600))
def test_the_hash_is_that_of_aiokafka(key: bytes) -> None:
    assert reference(key) == murmur2(key)


@given(st.binary(min_size=1, max_size=40), st.integers(1, 50))
def test_the_partition_is_that_of_aiokafka(key: bytes, partitions: int) -> None:
    everyone = list(range(partitions))

    assert DefaultPartitioner()(key, everyone, everyone) == partition_of(key, partitions)
