"""Sets of changed names, without values: there are few different ones, and thousands of groups in memory share them (pure).

While events are folded a set is a *mask*, a number with one bit for each name: to join two of them is one instruction. The bits are
those of the first names that this process has seen; a set with a later one is a mapping, which is slower and means the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgpack
import orjson

CACHED_NAMES: Final = 64
"""Sets of at most so many names are remembered."""

CACHED_TOTAL: Final = 40_000
"""Names in all the sets remembered: some 8 MB for each way to ask."""

MASKED_NAMES: Final = 500
"""Names that have a bit."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value", bound=Collection[str] | int)

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class NameSet(dict[str, bytes]):
    """Names, each with an empty value; shared, never to be changed.

    Attributes:
        packed: msgpack map of the names, as it is in the outbox.
        fields: Name, value, name … as they are in a sidecar.
        listed: JSON array of the names in order.
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


class _Cache(dict[_Key, _Value]):
    """What was wanted before; emptied where it is too much."""

    names = 0

    def add(self, key: _Key, names: int, value: _Value) -> _Value:
        if names <= CACHED_NAMES:
            self.names += names + 1
            if self.names > CACHED_TOTAL:
                self.clear()
                self.names = names + 1
            self[key] = value
        return value


_of_text: _Cache[frozenset[str], NameSet] = _Cache()
_of_bytes: _Cache[frozenset[bytes], NameSet] = _Cache()
_of_mask: _Cache[int, NameSet] = _Cache()
_in_order: _Cache[tuple[str, ...], int] = _Cache()
_bits: dict[str, int] = {}


def without_values(names: Iterable[str]) -> NameSet:
    """The one set of these names."""
    key = frozenset(names)
    found = _of_text.get(key)
    return _of_text.add(key, len(key), NameSet(names)) if found is None else found


def without_values_of_bytes(names: Iterable[bytes]) -> NameSet:
    """The one set of these names, which are UTF-8."""
    key = frozenset(names)
    found = _of_bytes.get(key)
    return _of_bytes.add(key, len(key), without_values([name.decode() for name in names])) if found is None else found


def of_mask(mask: int) -> NameSet:
    """The one set of these names."""
    found = _of_mask.get(mask)
    if found is None:
        found = _of_mask.add(mask, mask.bit_count(), without_values([name for name, bit in _bits.items() if mask & bit]))
    return found


def mask_of(names: Mapping[str, Any]) -> int | None:
    """The mask of these names; None where one has no bit."""
    key = tuple(names)
    found = _in_order.get(key)
    return _new_mask(key) if found is None else found


def _new_mask(names: tuple[str, ...]) -> int | None:
    mask = 0
    for name in names:
        bit = _bits.get(name)
        if bit is None:
            if len(_bits) >= MASKED_NAMES:
                return None
            bit = _bits[name] = 1 << len(_bits)
        mask |= bit
    return _in_order.add(names, len(names), mask)
