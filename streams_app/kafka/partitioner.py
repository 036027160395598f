"""Chooses the partition of a record key like Kafka's own clients (pure).

The output must be partitioned as by a Java producer, because consumers join it with their own topics. The hash is 32-bit
arithmetic, which is slow in Python for one key at a time. So all keys of one length are hashed at once, in the lanes of one large
integer.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_LANE = struct.pack("<Q", 1)  # 64 bits: a product of two 32-bit numbers stays within its lane


def murmur2(keys: Sequence[bytes]) -> list[int]:
    """Return Kafka's 32-bit Murmur2 of each key (``org.apache.kafka.common.utils.Utils.murmur2``), unsigned."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        by_length[len(key)].append(position)
    hashes = [0] * len(keys)
    for length, positions in by_length.items():
        found = _of_one_length([keys[position] for position in positions], length)
        for position, value in zip(positions, found, strict=True):
            hashes[position] = value
    return hashes


def _of_one_length(keys: list[bytes], length: int) -> tuple[int, ...]:
    count, words = len(keys), -(-length // 4)
    padding = bytes(words * 4 - length)
    read = struct.unpack(f"<{count * words}I", padding.join(keys) + padding)
    lanes = struct.Struct(f"<{count}Q")
    one = int.from_bytes(_LANE * count, "little")
    mask = one * _MASK
    mixed = one * (_SEED ^ length & _MASK)
    for word in range(words):
        k = int.from_bytes(lanes.pack(*read[word::words]), "little")
        if word < length // 4:
            k = k * _M & mask
            mixed = (mixed * _M & mask) ^ ((k ^ _shifted(k, 24, one)) * _M & mask)
        else:
            mixed = (mixed ^ k) * _M & mask
    mixed = (mixed ^ _shifted(mixed, 13, one)) * _M & mask
    return lanes.unpack((mixed ^ _shifted(mixed, 15, one)).to_bytes(8 * count, "little"))


def _shifted(lanes: int, bits: int, one: int) -> int:
    """Shift every 64-bit lane of ``lanes`` to the right, and clear the bits that come from the next higher lane.

    Args:
        lanes: One integer that contains a value below 2**32 in each lane.
        one: An integer with the value 1 in each lane.
    """
    return lanes >> bits & one * (_MASK >> bits)


def partitions_of(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Return the partition that Kafka's own clients choose for each key, in a topic with ``partitions`` partitions."""
    return [(value & 0x7FFFFFFF) % partitions for value in murmur2(keys)]
