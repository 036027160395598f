"""`streams-app check` judges a payload as decoding the records of a fold does, for fields of every type."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
import pytest
from pydantic import BaseModel, BeforeValidator, create_model
from pydantic.errors import PydanticUserError

from streams_app import Catalogue, Event, records_of, subscriber
from streams_app.codec import member_of
from streams_app.errors import BadEventError
from streams_app.events.codec import Decoder
from streams_app.events.folded import FoldInfo
from streams_app.finding import Level
from streams_app.fold import Fold
from streams_app.folding.core.record import RecordShape, SealedGroup, render
from streams_app.settings import EventsSettings, Limits, Settings
from streams_app.subscribers.declaration.record_types import clashes
from streams_app.subscribers.declaration.subscription import subscriptions_of
from streams_app.subscribers.running.findings import field_findings

ID, FIRST = str(uuid.UUID(int=1)), "2024-01-01T00:00:00Z"
TEXTS = ("a", "1", "1.5", "true", "likes", ID, FIRST)
GROUPS: Mapping[str, tuple[Any, ...]] = {
    "account_id": (*TEXTS, 1, 0, 1.5, True),
    "@key": TEXTS,
}
NAMES = ("a", "1", "likes", ID, FIRST)
VALUES = (b"null", b"1", b"1.5", b'"a"', b"true", b"[1]", b'{"a":1}', b'"2024-01-01T00:00:00Z"')


class Name(Enum):
    LIKES = "likes"


class Number(IntEnum):
    ONE = 1


class Likes(msgspec.Struct):
    likes: Any = None


class Loop(msgspec.Struct):
    more: Loop | None = None


class Row(msgspec.Struct, array_like=True):
    first: str = ""


class Typed(TypedDict, total=False):
    likes: int


class Folded(msgspec.Struct):
    id: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class Other(msgspec.Struct):
    colour: str


class Model(BaseModel):
    likes: Any = None


TYPES = [
    Any, str, int, float, bool, bytes, None, datetime, Decimal, uuid.UUID, Literal["likes"], Literal[1], Name, Number,
    list, list[str], list[int], list[Any], list[Name], list[uuid.UUID], list[list[str]], set[str], frozenset[str], tuple[str, ...],
    dict, dict[str, Any], dict[str, int], dict[str, str], Likes, Loop, Row, Typed, Model,
    str | None, int | None, list[str] | None, dict[str, Any] | None, str | list[str], list[str] | dict[str, Any], int | bool,
    Annotated[list[str], BeforeValidator(list)], Annotated[str, BeforeValidator(str)],
]  # fmt: skip
"""Types of a field; some are supported by msgspec or by pydantic alone."""


def fold(**values: Any) -> Fold:
    given = {"name": "f", "source": "s", "group_key": "account_id", "changed": "metrics", "quiet_period": "1m"}
    return Fold(**(given | values))


def records(declared: Fold, values: tuple[bytes, ...] = VALUES) -> list[bytes]:
    """Return a record for each group, name and last value."""
    found = []
    for group in GROUPS["@key" if declared.group_key == "@key" else "account_id"]:
        for name in NAMES:
            for value in values if declared.keep == "last" else (b"",):
                sealed = SealedGroup(member_of((group,)), 0, 1, 2, 5, 6, "quiet", 7, 1, {name: value})
                found += [record.value for record in render(sealed, RecordShape.of(declared), "s", 0)]
    return found


def payload_of(kind: str, field: str, of_type: Any) -> Any:
    """Return a payload class with one field."""
    makers: dict[str, Any] = {
        "struct": lambda: msgspec.defstruct("Payload", [(field, of_type)]),
        "dataclass": lambda: make_dataclass("Payload", [(field, of_type)]),
        "pydantic": lambda: cast("Any", create_model)("Payload", **{field: (of_type, ...)}),
    }
    return makers[kind]()


def is_any_taken(payload: Any, found: list[bytes]) -> bool:
    decoder = Decoder(payload, Limits(), is_folded=True)
    for one in found:
        try:
            decoder(b"k", one)
        except BadEventError:
            continue
        return True
    return False


@pytest.mark.parametrize("kind", ["struct", "dataclass", "pydantic"])
@pytest.mark.parametrize("keep", ["names", "last"])
@pytest.mark.parametrize("group_key", ["account_id", "@key"])
def test_type_is_rejected_if_no_record_can_be_decoded_as_it(kind: str, keep: Any, group_key: str) -> None:
    declared = fold(group_key=group_key, keep=keep)
    found = records(declared)
    wrong = []
    for field in (declared.group_fields[0], "metrics", "fold"):
        for of_type in [*TYPES, *((FoldInfo, Folded, Other, Strict) if field == "fold" else ())]:
            try:
                payload = payload_of(kind, field, of_type)
                clashing_fields = [clash.field for clash in clashes(declared, payload)]
            except (TypeError, PydanticUserError):
                continue  # not a payload
            if is_any_taken(payload, found) == bool(clashing_fields):
                wrong.append((field, of_type, clashing_fields))

    assert [] == wrong


class Posted(msgspec.Struct):
    account_id: int
    metrics: dict[str, int]


class Listed(msgspec.Struct):
    account_id: int
    metrics: list[str]


class Wanted(msgspec.Struct):
    account_id: str
    metrics: dict[str, str]


@pytest.mark.parametrize(
    ("event", "keep", "expected"),
    [
        (None, "last", []),
        (None, "names", [("metrics", "an array of strings", "an object")]),
        (Posted, "last", [("account_id", "an integer", "a string"), ("metrics{}", "an integer", "a string")]),
        (Listed, "last", [("account_id", "an integer", "a string"), ("metrics{}", "null", "a string")]),
        (Likes, "last", []),
    ],
)
def test_event_kind_determines_the_fields_of_its_records(event: Any, keep: Any, expected: list[tuple[str, str, str]]) -> None:
    folded = event and Event("s.e", event, description="It is folded.", keyed_by=None, topic="s")
    found = clashes(fold(keep=keep), Wanted, folded)

    assert expected == [(one.field, one.made, one.wanted) for one in found]


@dataclass
class Changed:
    account_id: str
    metrics: list[str]


@dataclass
class Both:
    account_id: str
    metrics: Posted


@pytest.mark.parametrize(
    ("payload", "level", "text"),
    [
        (
            Changed, Level.ERROR,
            "subscriber take: Changed.metrics requires an array of strings, and records of f have an object there: "
            "each becomes a dead letter",
        ),
        (
            Both, Level.WARNING,
            "subscriber take: Both.metrics requires 'account_id', 'metrics', and a record of f has only the names that changed: "
            "without it, it becomes a dead letter",
        ),
    ],
)  # fmt: skip
def test_mismatch_names_the_field_and_the_types_of_fold_and_payload(payload: Any, level: Level, text: str) -> None:
    @subscriber(records_of("f", payload), idempotent="yes", description="It takes them.")
    async def take(event: Any) -> None: ...

    declared = fold(keep="last")
    settings = Settings(app_id="social", folds=(declared,), events=EventsSettings(catalogue="tests.helpers.events.shop:catalogue"))
    one = replace(take, name="take") if take.name != "take" else take
    (found,) = field_findings(list(subscriptions_of(Catalogue((), (one,)), settings)), [declared])

    assert (level, text) == (found.level, found.text)
