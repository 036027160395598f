"""Values that neither JSON nor Python can represent, such as ``1e999`` or an Avro time of day below zero (pure).

Only a component that uses such a value rejects the event, so the decoded event has an :class:`Unrepresentable` in its place. In
JSON, a value that does not fit its type in a schema is written as a number beyond a double, which decoders reject where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from streams_app.errors import BadEventError
from streams_app.exact_json import MAX_DIGITS
from streams_app.reasons import Reason

_UNFIT: Final = "e99999"
"""Exponent of a number that stands for a value which does not fit its type in a schema."""

_SIGN: Final = "\0unrepresentable"
_NUMBER_IN_JSON: Final = b'{"\\u0000unrepresentable":"%b"}'
_LONGEST: Final = 40


class Unrepresentable:
    """A value of an event that cannot be represented; two of them are equal if their texts are.

    Attributes:
        text: The number as the JSON has it.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def of(cls, raw: Any) -> Unrepresentable:
        """Return the representation of a value that does not fit its type in a schema.

        Only an integer other than zero is part of the text.
        """
        return cls(f"{raw if type(raw) is int and raw else 1}{_UNFIT}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unrepresentable) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        if self.text.endswith(_UNFIT):
            return f"a value that does not fit its type in the schema ({self.text.removesuffix(_UNFIT)})"
        if len(self.text) > MAX_DIGITS:
            return f"a number with more than {MAX_DIGITS} digits"
        return f"a number beyond a double ({self.text if len(self.text) <= _LONGEST else self.text[:_LONGEST] + '…'})"

    @property
    def reason(self) -> Reason:
        """Reason of the dead letter of an event of which this value is read."""
        return "wrong-format" if self.text.endswith(_UNFIT) else "not-json"


def marked(token: bytes) -> bytes:
    """Return the JSON that takes the place of a number beyond a double until :func:`restored` replaces it."""
    return _NUMBER_IN_JSON % token


def restored(decoded: Any) -> Any:
    """Replace each value that :func:`marked` has written by an :class:`Unrepresentable`, in place; return the value."""
    for holder, at, part in _parts(holders := [decoded]):
        if type(part) is dict and len(part) == 1 and type(text := part.get(_SIGN)) is str:
            holder[at] = Unrepresentable(text)
    return holders[0]


def _parts(top: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Iterate over all parts of a decoded value, with the object or array that holds each, and its name or index in it."""
    unseen: list[Any] = [top]
    while unseen:
        holder = unseen.pop()
        for at, part in list(holder.items() if type(holder) is dict else enumerate(holder)):
            yield holder, at, part
            if type(holder[at]) in (dict, list):
                unseen.append(holder[at])


def require_representable(value: Any, label: str) -> None:
    """Reject an event if a value that is read of it, or a part of this value, cannot be represented.

    The detail names the path of the part; ``label`` is the path of the value, empty for the whole event.
    """
    unseen = [(label, value)]
    while unseen:
        path, part = unseen.pop()
        if type(part) is Unrepresentable:
            raise BadEventError(part.reason, f"{path!r} is {part!r}")
        if type(part) is dict:
            unseen += [(f"{path}.{name}" if path else name, one) for name, one in reversed(part.items())]
        elif type(part) is list:
            unseen += reversed([(f"{path}[{at}]", one) for at, one in enumerate(part)])
