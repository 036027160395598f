"""Aggregates the values of changed names, as in ``keep = {likes = "sum", price = "last", seen = "max", posts = "count"}`` (pure).

An aggregated value is stored as a msgpack array, whose first item is the kind of the aggregate; only a last value is stored as
JSON. ``lua/shared/aggregates.lua`` combines two stored values in Redis as :func:`combined` does; a test compares the two.

* A sum is exact; a count is stored as a sum. Lua has only doubles, so a sum is stored in *limbs* of 24 bits:
  ``["+", kind, index, limb, index, limb …]``. Limbs that are zero may be missing. The stored sum
  is the total of ``limb * 2 ** (24 * index)`` over all limbs, times :data:`SCALE`, of which every double is a multiple. Limbs are
  added without a carry, which stays exact for 2^29 additions. ``kind`` is 0 for integers only, 1 if there is a float, and 2 if
  there is a decimal that no double holds. A decimal is rounded to a multiple of the scale, which is far finer than its last digit.
  A limb that is zero at the index :data:`FRACTION_INDEX` + n says that a number with n digits after the point was added. So the
  sum with a decimal is the total, rounded to the most digits after the point that any of its numbers has.
* A mean is stored as a sum that begins with ``"/"``; its limb at the index :data:`COUNT_INDEX` is the number of values.
* A maximum or minimum is ``[">" or "<", rank, high, low, JSON]``. For numbers, ``rank`` is 0, ``high`` is the nearest double, and
  ``low`` is the exact value minus ``high``; for a decimal below 2^53, minus ``high`` as it is written. For text, ``rank`` is 1, and
  ``high`` is the text in UTF-8. Values are compared by rank, then by ``high``, then by ``low``. If two doubles do not hold a
  number, two more items follow, which are compared last: 1 or -1 if the number is above or below ``high + low``, and its digits as
  text in the order of the numbers (:func:`_ordered_digits`).
* A first value is ``["^", JSON]``.
* A last value is its JSON, as with ``keep = "last"``. JSON begins with an ASCII character, and a msgpack array does not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any, Final

import msgpack
import orjson

from streams_app.errors import BadEventError
from streams_app.exact_json import encode
from streams_app.fold import Aggregate

OTHERS: Final = "*"
"""Key in ``keep`` for all names that have no key of their own. If ``keep`` does not contain it, their last value is kept."""

LIMB_BITS: Final = 24
SCALE_BITS: Final = 45 * LIMB_BITS
"""Number of binary digits after the point in a stored sum: 1080, because a double has at most 1074."""

UNIT_INDEX: Final = SCALE_BITS // LIMB_BITS
"""Index of the limb that contains the lowest 24 bits of an integer."""

SCALE: Final = Fraction(1, 2**SCALE_BITS)

FRACTION_INDEX: Final = 10_000
"""Index of the limbs that say how many digits after the point the numbers of a sum have; they do not change the sum."""

COUNT_INDEX: Final = 20_000
"""Index of the limb that counts the values of a mean."""

MAX_FRACTION: Final = 300
"""Maximum number of digits after the point of a decimal in a sum. :data:`SCALE` is 10^25 times finer."""

INTEGERS, FLOATS, DECIMALS = 0, 1, 2
SUM, MEAN, FIRST, MAX, MIN = "+", "/", "^", ">", "<"
NUMBER, TEXT = 0, 1

_LIMB: Final = 2**LIMB_BITS
_ARRAYS: Final = 0x80
"""A stored value is an array if its first byte is at least this; JSON begins with a lower byte."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class Values(list[Any]):
    """The values of one changed name in a run of events, in the order of the events, not aggregated yet."""

    __slots__ = ("kind",)

    def __init__(self, kind: Aggregate, value: Any) -> None:
        super().__init__((value,))
        self.kind = kind


@dataclass(frozen=True)
class Aggregates:
    """How the values of each changed name of a fold are aggregated: by ``by_name``, other names by ``others``."""

    by_name: Mapping[str, Aggregate]
    others: Aggregate

    @classmethod
    def of(cls, keep: Mapping[str, Aggregate]) -> Aggregates:
        return cls({name: kind for name, kind in keep.items() if name != OTHERS}, keep.get(OTHERS, "last"))

    def check(self, names: Mapping[str, Any]) -> None:
        """Check that the values of an event can be aggregated.

        Raises:
            BadEventError: The aggregate of a name does not accept the type of its value (reason ``no-value``).
        """
        for name, value in names.items():
            if type(value) is not int and type(value) is not float:
                _check(self.by_name.get(name, self.others), name, value)

    def begun(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a new run, from those of its first event; :meth:`join` adds the values of later events."""
        found: dict[str, Any] = {}
        self.join(found, names)
        return found

    def join(self, names: dict[str, Any], more: Mapping[str, Any]) -> None:
        """Add the values of the next event to those of its run: to the :class:`Values` of a name, or as its last value."""
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
    if type(value) is Decimal:
        if kind in ("sum", "mean") and _fraction_digits(value) > MAX_FRACTION:
            raise BadEventError(
                "no-value", f"{name!r} has more than {MAX_FRACTION} digits after the point, too many for its {kind}"
            )
        return
    if kind in ("sum", "mean"):
        raise BadEventError("no-value", f"{name!r} is {_kind_of(value)}, and its {kind} needs a number")
    if kind in ("max", "min") and type(value) is not str:
        raise BadEventError("no-value", f"{name!r} is {_kind_of(value)}, and its {kind}imum needs a number or text")


def _kind_of(value: Any) -> str:
    return "missing or null" if value is None else f"a JSON {type(value).__name__}"


def stored_value(value: Any) -> bytes:
    """Encode the value of a changed name for storage: :class:`Values` are aggregated into msgpack, other values become JSON."""
    return _STORED[value.kind](value) if type(value) is Values else encode(value)


def combined(stored: bytes, value: bytes) -> bytes:
    """Combine two stored values of one changed name, as :func:`stored_value` encodes them; ``stored`` is the earlier one."""
    if value[0] < _ARRAYS:
        return value
    former, later = _unpacked(stored), _unpacked(value)
    if later[0] == FIRST:
        return stored
    if later[0] in (SUM, MEAN):
        limbs = _limbs_of(former)
        for index, limb in _limbs_of(later).items():
            limbs[index] = limbs.get(index, 0) + limb
        return _packed_limbs(later[0], limbs, max(former[1], later[1]))
    before, after = _order_of(former[1:]), _order_of(later[1:])
    return value if after == before or (after > before) == (later[0] == MAX) else stored


def json_of(stored: bytes) -> bytes:
    """Return a stored value as JSON.

    A sum of integers is exact, and so is a sum with a decimal that no double holds; any other sum with a float is the nearest
    double, and so is a mean. Maximum, minimum, first and last value have the value that was received. A mean, or a sum with a float
    or a decimal, that is beyond the range of doubles becomes an integer, rounded down.
    """
    if stored[0] < _ARRAYS:
        return stored
    parts = _unpacked(stored)
    if parts[0] not in (SUM, MEAN):
        json: bytes = parts[1 if parts[0] == FIRST else 4]
        return json
    limbs = _limbs_of(parts)
    total = sum(limb << (LIMB_BITS * index) for index, limb in limbs.items() if index < FRACTION_INDEX)
    if parts[0] == MEAN:
        return _double(total * SCALE / limbs[COUNT_INDEX])
    if parts[1] == FLOATS:
        return _double(total * SCALE)
    if parts[1] == DECIMALS and _is_double(total * SCALE):
        return _decimal_text(total, _most_digits(limbs)).encode()
    return _integer_text(total >> SCALE_BITS).encode()


def _double(exact: Fraction) -> bytes:
    """Return the nearest double as JSON. Beyond the range of doubles, return an integer, because no other such number is read."""
    return orjson.dumps(float(exact)) if _is_double(exact) else _integer_text(math.floor(exact)).encode()


def _is_double(exact: Fraction) -> bool:
    try:
        float(exact)
    except OverflowError:
        return False
    return True


def _most_digits(limbs: Mapping[int, int]) -> int:
    return max(index - FRACTION_INDEX for index in limbs)


def _integer_text(value: int) -> str:
    return str(Decimal(value))  # str() of an integer has a limit of 4,300 digits


def _decimal_text(total: int, digits: int) -> str:
    """Return a stored total as a decimal number, rounded to its digits after the point; zeros at the end are left out."""
    rounded = ((total * 10**digits >> (SCALE_BITS - 1)) + 1) >> 1
    return f"{_WIDE.scaleb(Decimal(rounded), -digits).normalize(_WIDE):f}"


def _unpacked(stored: bytes) -> list[Any]:
    kind, *rest = msgpack.unpackb(stored, raw=True)
    return [kind.decode(), *rest]


def _limbs_of(parts: list[Any]) -> dict[int, int]:
    return dict(zip(parts[2::2], map(int, parts[3::2]), strict=True))


def _packed_limbs(symbol: str, limbs: Mapping[int, int], kind: int) -> bytes:
    return _pack([symbol, kind, *(part for item in limbs.items() for part in item)])


def _sum(values: list[Any]) -> bytes:
    return _packed_limbs(SUM, *_limbs_and_kind(values))


def _mean(values: list[Any]) -> bytes:
    limbs, kind = _limbs_and_kind(values)
    return _packed_limbs(MEAN, {**limbs, COUNT_INDEX: len(values)}, kind)


def _first(values: list[Any]) -> bytes:
    return _pack([FIRST, encode(values[0])])


def _limbs_and_kind(values: list[Any]) -> tuple[dict[int, int], int]:
    """Return the limbs of a sum by their index, and its kind."""
    integers = sum(value for value in values if type(value) is int)
    others = [value for value in values if type(value) is not int]
    if not others and -_LIMB < integers < _LIMB:
        return {UNIT_INDEX: integers}, INTEGERS
    total, kind, limbs = integers << SCALE_BITS, INTEGERS, dict[int, int]()
    for value in others:
        numerator, denominator = value.as_integer_ratio()
        if type(value) is float:
            total += numerator << (SCALE_BITS + 1 - denominator.bit_length())  # the denominator is a power of two
            kind = max(kind, FLOATS)
        else:
            total += ((numerator << (SCALE_BITS + 1)) // denominator + 1) >> 1
            kind = DECIMALS
    sign, rest = (-1 if total < 0 else 1), abs(total)
    index = max((rest & -rest).bit_length() - 1, 0) // LIMB_BITS  # of the lowest limb that is not zero
    rest >>= index * LIMB_BITS
    while rest:
        rest, limb = divmod(rest, _LIMB)
        if limb:
            limbs[index] = sign * limb
        index += 1
    if others:
        limbs[FRACTION_INDEX + max(map(_fraction_digits, others))] = 0
    return limbs, kind


def _fraction_digits(value: float | Decimal) -> int:
    """Return how many digits after the point a number has, without zeros at the end, as the shortest text that means it."""
    text = orjson.dumps(value).decode() if type(value) is float else f"{value:f}"  # much faster than repr()
    if "e" in text:
        text = f"{Decimal(text):f}"
    return len(text.partition(".")[2].rstrip("0"))


def _count(values: list[Any]) -> bytes:
    return _sum([len(values)])


def _max(values: list[Any]) -> bytes:
    return _extreme(MAX, max(reversed(values), key=_key_of(values)))


def _min(values: list[Any]) -> bytes:
    return _extreme(MIN, min(reversed(values), key=_key_of(values)))


def _key_of(values: list[Any]) -> Callable[[Any], Any]:
    """Return a function with the sort keys of values: quickly if none is a decimal, otherwise in the order of the stored parts."""
    has_decimals = any(type(value) is Decimal for value in values)
    return (lambda value: _order_of(_parts_of(value))) if has_decimals else _rank


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key that puts numbers before text.

    Integers and floats are compared exactly, and text in the order of its UTF-8 bytes.
    """
    return TEXT if type(value) is str else NUMBER, value


def _extreme(kind: str, value: Any) -> bytes:
    return _pack([kind, *_parts_of(value)])


def _parts_of(value: Any) -> list[Any]:
    """Return the stored parts of a maximum or minimum after its kind."""
    rank, high = _rank(value)
    if rank == TEXT or type(value) is float:
        return [rank, high, 0, encode(value)]
    if type(value) is int and -_SHORT_INTEGER < value < _SHORT_INTEGER:
        high = float(value)
        return [rank, high, value - int(high), encode(value)]
    exact = Decimal(value)
    high, rest = _nearest(exact)
    if type(value) is Decimal and abs(high) < _EXACT_INTEGER:
        rest = _WIDE.subtract(exact, Decimal(repr(high)))  # compared with a float as both are written
    low, rest = _nearest(rest)
    parts = [rank, high, int(low) if low.is_integer() and abs(low) <= _EXACT_INTEGER else low, encode(value)]
    return [*parts, 1 if rest > 0 else -1, _ordered_digits(exact)] if rest else parts


def _nearest(exact: Decimal) -> tuple[float, Decimal]:
    """Return the double nearest to a number, at most the largest one, and the rest of the number."""
    near = float(exact)
    if not math.isfinite(near):
        near = math.copysign(sys.float_info.max, near)
    return near, _WIDE.subtract(exact, Decimal(near))


def _ordered_digits(exact: Decimal) -> str:
    """Return the size and the digits of a number as text; of two numbers with one sign, the larger one has the larger text."""
    sign, digits, exponent = exact.as_tuple()
    text = f"{len(digits) + int(exponent) + _BIAS:05d}{''.join(map(str, digits)).rstrip('0')}"
    return text.translate(_COMPLEMENT) + "~" if sign else text


def _order_of(parts: list[Any]) -> list[Any]:
    """Return the parts of a maximum or minimum after its kind, in the order in which they are compared."""
    return [*parts[:3], *(parts[4:] or (0, ""))]


_BIAS: Final = 50_000
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")
_EXACT_INTEGER: Final = 2**53
_SHORT_INTEGER: Final = 2**100
"""A smaller integer is the sum of two doubles."""
_WIDE: Final = Context(prec=10_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Enough digits for every number that can be kept, and for the difference between such a number and a double."""

_STORED: Final = {"sum": _sum, "mean": _mean, "count": _count, "max": _max, "min": _min, "first": _first}
