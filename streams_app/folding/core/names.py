"""Compact sets of changed names without values (pure). Most groups have equal sets, so thousands of groups share one object.

While events are folded, a set is a *mask*: an integer with one bit per name, so that one instruction joins two sets. Only the first
:data:`MASKED_NAMES` names that this process reads get a bit. A set with any other name is a mapping, which is slower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from threading import Lock
from typing import Any, Final, TypeVar

import msgpack
import orjson

CACHED_NAMES: Final = 64
"""Sets with more names than this are not cached."""

CACHED_TOTAL: Final = 1_500_000
"""Maximum weight of one cache, some 8 MB. Each set weighs its number of characters, plus :data:`NAME_WEIGHT` per name."""

NAME_WEIGHT: Final = 20

MASKED_NAMES: Final = 1_000
"""Maximum number of names that have a bit."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value", bound=Collection[str] | int)

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class NameSet(dict[str, bytes]):
    """A set of changed names, as a dict in which all values are empty. Many groups share it, so it must not be modified.

    Attributes:
        packed: The names with empty values as a msgpack map, for the outbox.
        fields: Each name followed by an empty value, as arguments for the group's hash in Redis.
        listed: The names as a sorted JSON array, for records.
    """

    __slots__ = ("fields", "listed", "packed")

    packed: bytes
    fields: list[Any]
    listed: str

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names, b""))
        self.packed = _pack(dict(self))
        self.fields = [part for item in self.items() for part in item]
        self.listed = orjson.dumps(sorted(self)).decode()


class Cache(dict[_Key, _Value]):
    """Cache with one value for each set of names; cleared when the total weight of the sets exceeds :data:`CACHED_TOTAL`.

    The weight of a set is the number of characters in its names, plus :data:`NAME_WEIGHT` for each name and for the set itself.
    """

    weight = 0

    def add(self, key: _Key, names: Collection[str], value: _Value) -> _Value:
        """Cache ``value`` for the set ``names`` unless the set has more than :data:`CACHED_NAMES` names; return ``value``."""
        if len(names) <= CACHED_NAMES:
            weight = sum(map(len, names)) + NAME_WEIGHT * (len(names) + 1)
            self.weight += weight
            if self.weight > CACHED_TOTAL:
                self.clear()
                self.weight = weight
            self[key] = value
        return value


_of_text: Cache[frozenset[str], NameSet] = Cache()
_of_bytes: Cache[frozenset[bytes], NameSet] = Cache()
_of_mask: Cache[int, NameSet] = Cache()
_in_order: Cache[tuple[str, ...], int] = Cache()
_bits: dict[str, int] = {}
_assigning: Final = Lock()


def shared_names(names: Collection[str]) -> NameSet:
    """Return these names as a NameSet; equal small sets share one cached object."""
    key = frozenset(names)
    found = _of_text.get(key)
    return _of_text.add(key, key, NameSet(names)) if found is None else found


def shared_names_of_bytes(names: Collection[bytes]) -> NameSet:
    """Return these names, given in UTF-8, as :func:`shared_names` does."""
    key = frozenset(names)
    found = _of_bytes.get(key)
    if found is None:
        text = shared_names([name.decode() for name in names])
        found = _of_bytes.add(key, text, text)
    return found


def names_of_mask(mask: int) -> NameSet:
    """Return the names whose bits are set in a mask."""
    found = _of_mask.get(mask)
    if found is None:
        names = shared_names([name for name, bit in tuple(_bits.items()) if mask & bit])  # another thread may add a name
        found = _of_mask.add(mask, names, names)
    return found


def packed_names_of_mask(mask: int) -> tuple[NameSet, bytes, bytes]:
    """Return the names of a mask, their msgpack map, and msgpack of each name and its empty value, one after the other."""
    names = names_of_mask(mask)
    return names, names.packed, b"".join(map(_pack, names.fields))


def unmasked(names: Mapping[str, Any] | int) -> Mapping[str, Any]:
    """Convert a mask of changed names to a mapping with empty values; return a mapping unchanged."""
    return names_of_mask(names) if isinstance(names, int) else names


def size_of(names: Mapping[str, Any] | int) -> int:
    """Return the number of names in a mask or a mapping."""
    return names.bit_count() if isinstance(names, int) else len(names)


def mask_of(names: Mapping[str, Any]) -> int | None:
    """Return the mask of these names, in which a new name gets the next free bit; None if no bit is left for one of them."""
    key = tuple(names)
    found = _in_order.get(key)
    return _new_mask(key) if found is None else found


def bit_of(name: str) -> int:
    """Return the number of the bit of a name that has one, counted from the lowest."""
    return _bits[name].bit_length() - 1


def _new_mask(names: tuple[str, ...]) -> int | None:
    mask = 0
    # A console reads events in a thread, and the thread of a closed one may still run: both would give a name a bit.
    with _assigning:
        for name in names:
            bit = _bits.get(name)
            if bit is None:
                if len(_bits) >= MASKED_NAMES:
                    return None
                bit = _bits[name] = 1 << len(_bits)
            mask |= bit
    return _in_order.add(names, names, mask)
