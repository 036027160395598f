"""Aggregates the values of changed names, as in ``keep = {likes = "sum", price = "last", seen = "max", posts = "count"}`` (pure).

An aggregated value is stored as a msgpack array, whose first item is the kind of the aggregate; only a last value is stored as
JSON. ``lua/shared/aggregates.lua`` combines two stored values in Redis as :func:`combined` does; a test compares the two.

* A sum is exact; a count is stored as a sum. Lua has only doubles, so a sum is stored in *limbs* of 24 bits:
  ``["+", is_float, index, limb, index, limb …]``. Limbs that are zero may be missing. The stored sum
  is the total of ``limb * 2 ** (24 * index)`` over all limbs, times :data:`SCALE`, of which every double is a multiple. Limbs are
  added without a carry, which stays exact for 2^29 additions.
* A maximum or minimum is ``[">" or "<", rank, high, low, JSON]``. For numbers, ``rank`` is 0, ``high`` is the nearest double, and
  ``low`` is the exact value minus ``high``. For text, ``rank`` is 1, and ``high`` is the text in UTF-8. Values are compared by
  rank, then by ``high``, then by ``low``.
* A last value is its JSON, as with ``keep = "last"``. JSON begins with an ASCII character, and a msgpack array does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import msgpack
import orjson

from streams_app.errors import BadEventError
from streams_app.fold import Aggregate

OTHERS: Final = "*"
"""Key in ``keep`` for all names that have no key of their own. If ``keep`` does not contain it, their last value is kept."""

LIMB_BITS: Final = 24
SCALE_BITS: Final = 45 * LIMB_BITS
"""Number of binary digits after the point in a stored sum: 1080, because a double has at most 1074."""

UNIT_INDEX: Final = SCALE_BITS // LIMB_BITS
"""Index of the limb that contains the lowest 24 bits of an integer."""

SCALE: Final = Fraction(1, 2**SCALE_BITS)

SUM, MAX, MIN = "+", ">", "<"
NUMBER, TEXT = 0, 1

_LIMB: Final = 2**LIMB_BITS
_ARRAYS: Final = 0x80
"""A stored value is an array if its first byte is at least this; JSON begins with a lower byte."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class Values(list[Any]):
    """The values of one changed name in a run of events, in the order of the events, not aggregated yet.

    Attributes:
        kind: How to aggregate them: ``sum``, ``count``, ``max`` or ``min``.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: Aggregate, value: Any) -> None:
        super().__init__((value,))
        self.kind = kind


@dataclass(frozen=True)
class Aggregates:
    """How the values of each changed name of a fold are aggregated: ``sum``, ``count``, ``max``, ``min`` or ``last``.

    Attributes:
        by_name: Aggregate of each changed name that ``keep`` lists.
        others: Aggregate of all other names.
    """

    by_name: Mapping[str, Aggregate]
    others: Aggregate

    @classmethod
    def of(cls, keep: Mapping[str, Aggregate]) -> Aggregates:
        """Create the aggregates from the setting ``keep`` of a fold, which maps changed names to aggregates."""
        return cls({name: kind for name, kind in keep.items() if name != OTHERS}, keep.get(OTHERS, "last"))

    def check(self, names: Mapping[str, Any]) -> None:
        """Check that the values of an event can be aggregated; ``names`` contains the values by changed name.

        Raises:
            BadEventError: The aggregate of a name does not accept the type of its value (reason ``no-value``).
        """
        for name, value in names.items():
            if type(value) is not int and type(value) is not float:
                _check(self.by_name.get(name, self.others), name, value)

    def begun(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a new run by changed name, from ``names``, the values of its first event.

        :meth:`join` adds the values of later events.
        """
        found: dict[str, Any] = {}
        self.join(found, names)
        return found

    def join(self, names: dict[str, Any], more: Mapping[str, Any]) -> None:
        """Add the values ``more`` of the next event to ``names``, the values of its run.

        A last value replaces the one before; a value for another aggregate is added to the :class:`Values` of its name.
        """
        get, others = self.by_name.get, self.others
        for name, value in more.items():
            kind = get(name, others)
            if kind == "last":
                names[name] = value
            elif name in names:
                names[name].append(value)
            else:
                names[name] = Values(kind, value)


def _check(kind: Aggregate, name: str, value: Any) -> None:
    if kind == "sum":
        raise BadEventError("no-value", f"{name!r} is {_kind_of(value)}, and its sum needs a number")
    if kind in ("max", "min") and type(value) is not str:
        raise BadEventError("no-value", f"{name!r} is {_kind_of(value)}, and its {kind}imum needs a number or text")


def _kind_of(value: Any) -> str:
    return "missing or null" if value is None else f"a JSON {type(value).__name__}"


def stored_value(value: Any) -> bytes:
    """Encode the value of a changed name for storage: :class:`Values` are aggregated into msgpack, other values become JSON."""
    return _STORED[value.kind](value) if type(value) is Values else orjson.dumps(value)


def combined(stored: bytes, value: bytes) -> bytes:
    """Combine two stored values of one changed name, as :func:`stored_value` encodes them; ``stored`` is the earlier one."""
    if value[0] < _ARRAYS:
        return value
    former, later = _unpacked(stored), _unpacked(value)
    if later[0] == SUM:
        limbs = _limbs_of(former)
        for index, limb in _limbs_of(later).items():
            limbs[index] = limbs.get(index, 0) + limb
        return _packed_limbs(limbs, is_float=bool(former[1] or later[1]))
    before, after = former[1:4], later[1:4]
    return value if after == before or (after > before) == (later[0] == MAX) else stored


def json_of(stored: bytes) -> bytes:
    """Return a stored value as JSON: a sum of integers is exact, a sum with a float is the nearest double.

    Maximum, minimum and last value are returned as received. A sum with a float that is beyond the range of doubles becomes an
    integer, rounded down.
    """
    if stored[0] < _ARRAYS:
        return stored
    parts = _unpacked(stored)
    if parts[0] != SUM:
        json: bytes = parts[4]
        return json
    total = sum(limb << (LIMB_BITS * index) for index, limb in _limbs_of(parts).items())
    if not parts[1]:
        return str(total >> SCALE_BITS).encode()
    try:
        return orjson.dumps(float(total * SCALE))
    except OverflowError:
        return str(total >> SCALE_BITS).encode()  # beyond the range of doubles


def _unpacked(stored: bytes) -> list[Any]:
    kind, *rest = msgpack.unpackb(stored, raw=True)
    return [kind.decode(), *rest]


def _limbs_of(parts: list[Any]) -> dict[int, int]:
    return dict(zip(parts[2::2], map(int, parts[3::2]), strict=True))


def _packed_limbs(limbs: Mapping[int, int], *, is_float: bool) -> bytes:
    return _pack([SUM, int(is_float), *(part for item in limbs.items() for part in item)])


def _sum(values: list[Any]) -> bytes:
    integers = sum(value for value in values if type(value) is int)
    floats = [value for value in values if type(value) is float]
    if not floats and -_LIMB < integers < _LIMB:
        return _pack([SUM, 0, UNIT_INDEX, integers])
    total = integers << SCALE_BITS
    for numerator, denominator in map(float.as_integer_ratio, floats):
        total += numerator * (2**SCALE_BITS // denominator)
    sign, rest, index, limbs = (-1 if total < 0 else 1), abs(total), 0, dict[int, int]()
    while rest:
        rest, limb = divmod(rest, _LIMB)
        if limb:
            limbs[index] = sign * limb
        index += 1
    return _packed_limbs(limbs, is_float=bool(floats))


def _count(values: list[Any]) -> bytes:
    return _sum([len(values)])


def _max(values: list[Any]) -> bytes:
    return _extreme(MAX, max(reversed(values), key=_rank))


def _min(values: list[Any]) -> bytes:
    return _extreme(MIN, min(reversed(values), key=_rank))


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key that places numbers before text.

    Integers and floats are compared exactly, and text in the order of its UTF-8 bytes.
    """
    return TEXT if type(value) is str else NUMBER, value


def _extreme(kind: str, value: Any) -> bytes:
    rank, high = _rank(value)
    if type(value) is int:
        high = float(value)
    return _pack([kind, rank, high, value - int(high) if type(value) is int else 0, orjson.dumps(value)])


_STORED: Final = {"sum": _sum, "count": _count, "max": _max, "min": _min}
