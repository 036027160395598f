"""``streams-app forget`` knows every kind of component and every Redis key, or says why it leaves one as it is."""

from __future__ import annotations

import re
from collections import Counter
from types import ModuleType
from typing import Final

import pytest

from streams_app.delivery.batch import TP
from streams_app.folding.store import keys as of_folds
from streams_app.journal.store import keys as of_journals
from streams_app.live.store import keys as of_views
from streams_app.operations.forget import PARTS
from streams_app.operations.forget.part import ForgottenKey, Kept, Receipt, TopicBounds
from streams_app.requirements.components import COMPONENTS
from streams_app.subscribers.state import keys as of_subscribers

ERASED: Final = "erased"

REDIS_KEYS: Final[dict[ModuleType, dict[str, str]]] = {
    of_folds: {
        "due": ERASED, "first": ERASED, "group:<group>": ERASED, "ids:<group>": ERASED, "outbox": ERASED, "flush": ERASED,
        "drop": ERASED, "dropped": ERASED,
        "meta": "its cursor names a group only while a range is in progress; until it is folded, the partition counts as unread",
    },
    of_journals: {
        "blocks:<first>:<generation>": ERASED, "about": ERASED, "meta": "has no keys of events", "segments": "has only offsets",
    },
    of_views: {
        "pages": ERASED, "due": ERASED, "items:<page>": ERASED, "data:<page>": ERASED, "dropped": ERASED, "here:<page>": ERASED,
        "meta": "has no pages", "marker": "is random",
    },
    of_subscribers: {
        "meta": "has only offsets", "open": "has only offsets", "known:<hour>": "has digests of event ids",
        "ids:<hour>": "has event ids, which earlier versions stored for at most a week", "rate": "has only times and workers",
        "retry": "has only times and workers",
    },
}  # fmt: skip
"""Module with a table of keys → key → whether it is erased, or why it may stay."""


def test_every_kind_of_component_has_a_part() -> None:
    assert {kind.what for kind, _ in COMPONENTS} == PARTS.keys()


@pytest.mark.parametrize("module", REDIS_KEYS, ids=lambda module: module.__name__)
def test_every_redis_key_is_erased_or_may_stay(module: ModuleType) -> None:
    documented = re.findall(r"^``([^`{(]+)``  ", module.__doc__ or "", re.MULTILINE)

    assert REDIS_KEYS[module].keys() == set(documented)


@pytest.mark.parametrize(
    ("typed", "members", "columns", "names"),
    [
        ("anna", [b"sanna"], ["anna"], ["anna"]),
        ("17", [b"s17", b"j17"], ['"17"', "17"], ["17"]),
        ('"17"', [b"s17"], ['"17"'], ['"17"', "17"]),
        ('["a",1]', [b's["a",1]', b'j["a",1]'], ['"[\\"a\\",1]"', '["a",1]'], ['["a",1]']),
        ("", [b"s"], [""], [""]),
        ("\udcff", [b"s\xff"], ["\\xff"], []),
        ('"\\ud800"', [b's"\\ud800"'], None, ['"\\ud800"']),
    ],
)  # fmt: skip
def test_key_has_the_forms_in_which_parts_store_it(
    typed: str, members: list[bytes], columns: list[str] | None, names: list[str]
) -> None:
    key = ForgottenKey.of(typed)

    assert (members, names) == (list(key.members), list(key.names))
    assert columns is None or columns == list(key.columns)


def test_receipt_has_a_digest_instead_of_the_key() -> None:
    receipt = Receipt(
        {"fold f": Counter({"open groups": 1, "x": 0})}, (), [Kept("topic t", "why", 5)], {TP("t", 0): TopicBounds(0, 9)}
    )
    key = ForgottenKey.of("anna")
    given = {"is_plan": False, "times": ("a", "b"), "by": "me", "reference": "r"}
    plain, named = (receipt.as_json(key, with_key=with_key, **given) for with_key in (False, True))  # type: ignore[arg-type]  # a table

    assert (None, "anna", True) == (plain["key"], named["key"], plain["complete"])
    assert "anna" not in str(plain)
    assert plain["sha256"] == key.digest(bytes.fromhex(plain["salt"])) != named["sha256"]
    assert [{"where": "fold f", "what": "open groups", "number": 1}] == plain["removed"]
    assert [{"where": "topic t", "why": "why", "until_ms": 5}] == plain["not_removed"]
    assert [{"topic": "t", "partition": 0, "offset": 9}] == plain["read_up_to"]
