"""The partition of a key agrees with that of every other Kafka client."""

from __future__ import annotations

from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from streams_app.kafka.partitioner import murmur2, partitions_of

# From Kafka's own test (UtilsTest.testMurmur2).
HASHES_OF_KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hash_matches_the_java_client() -> None:
    assert [value % 2**32 for value in HASHES_OF_KAFKA.values()] == murmur2(list(HASHES_OF_KAFKA))


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=12, max_size=13) | st.binary(max_size=600), max_size=60))
def test_hashes_match_those_of_aiokafka(keys: list[bytes]) -> None:
    assert [reference(key) for key in keys] == murmur2(keys)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.integers(1, 50))
def test_partitions_match_those_of_aiokafka(keys: list[bytes], partitions: int) -> None:
    everyone = list(range(partitions))

    assert [DefaultPartitioner()(key, everyone, everyone) for key in keys] == partitions_of(keys, partitions)
