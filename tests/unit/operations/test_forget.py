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
from streams_app.kafka.admin import Topic
from streams_app.live.store import keys as of_views
from streams_app.operations.forget import PARTS
from streams_app.operations.forget.dead_letters import CountedRecords, KeySearch
from streams_app.operations.forget.part import ForgottenKey, Kept, Receipt, TopicBounds
from streams_app.operations.forget.topics import FUTURE, TopicFacts, WantedTombstones, kept_in
from streams_app.requirements.components import COMPONENTS
from streams_app.subscribers.state import keys as of_subscribers
from tests.helpers.kafka.records import Raw

ERASED: Final = "erased"

REDIS_KEYS: Final[dict[ModuleType, dict[str, str]]] = {
    of_folds: {
        "due": ERASED, "first": ERASED, "open": ERASED, "group:<group>": ERASED, "ids:<group>": ERASED, "outbox": ERASED,
        "flush": ERASED, "drop": ERASED, "dropped": ERASED, "timers": ERASED,
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


@pytest.mark.parametrize(
    ("typed", "record_keys", "neighbour"),
    [
        ("anna", [b"anna"], ""),
        ("17", [b"17"], ""),
        ('"17"', [b"17"], "17"),
        (" 17", [b" 17", b"17"], "17"),
        ('"a"', [b"a"], ""),
        (r'"\"a\""', [b'"a"'], ""),
        ('["a",1]', [b'["a",1]'], ""),
        ('["a", 1]', [b'["a", 1]', b'["a",1]'], '["a",1]'),
        ("1.0", [b"1.0", b"1"], "1"),
        ("true", [b"true"], ""),
        ("\udcff", [b"\xff"], ""),
    ],
)  # fmt: skip
def test_tombstone_is_written_only_if_every_group_with_its_record_key_is_meant(
    typed: str, record_keys: list[bytes], neighbour: str
) -> None:
    key = ForgottenKey.of(typed)

    assert (record_keys, neighbour) == (list(key.record_keys), key.neighbour)


NOW_MS, DAY_MS = 1_700_000_000_000, 86_400_000


@pytest.mark.parametrize(
    ("config", "role", "newest_ms", "until_ms", "why"),
    [
        ({"retention.ms": "86400000"}, "source", None, NOW_MS + DAY_MS, "until retention.ms removes them"),
        ({"retention.ms": "86400000", "segment.ms": "604800000"}, "source", 5, 5 + DAY_MS, "segment.ms (7d)"),
        ({"retention.ms": "86400000"}, "source", FUTURE, None, "timestamps in the future"),
        ({"retention.ms": "-1"}, "source", None, None, "forever: retention.ms has no limit; set it"),
        (None, "source", None, None, "the broker does not say when"),
        ({}, "source", None, None, "the broker does not say when"),
        ({"retention.ms": "86400000", "cleanup.policy": "compact"}, "source", None, None, "(--tombstone-topic t)"),
        ({"retention.ms": "86400000", "cleanup.policy": "compact"}, "dead letters", None, None, "(--tombstones)"),
        ({"retention.ms": "86400000", "cleanup.policy": "compact,delete"}, "output", None, NOW_MS + DAY_MS, "(--tombstones)"),
    ],
)
def test_receipt_says_until_when_a_topic_has_records_of_the_key(
    config: dict[str, str] | None, role: str, newest_ms: int | None, until_ms: int | None, why: str
) -> None:
    facts = TopicFacts(Topic("t", role, ()), 1, config, newest_ms)
    kept = kept_in(facts, ForgottenKey.of("anna"), WantedTombstones(), NOW_MS)

    assert kept is not None
    assert (f"topic t ({role})", until_ms, True) == (kept.where, kept.until_ms, why in kept.why)
    assert kept_in(facts._replace(is_empty=True), ForgottenKey.of("anna"), WantedTombstones(), NOW_MS) is None


@pytest.mark.parametrize(
    ("counted", "until_ms", "numbers", "why"),
    [
        (CountedRecords(2, 1, 7, 9, 9), 7 + DAY_MS, (2, 1), "2 of its records have the key, 1 others mention it; its records stay"),
        (CountedRecords(0, 0, -1, 9, 9), None, (0, 0), "none of its records has the key or mentions it"),
        (CountedRecords(0, 0, -1, 9, 20), NOW_MS + DAY_MS, (0, 0), "of its newest 9 of 20 offsets; its records stay"),
    ],
)
def test_receipt_says_how_many_records_of_a_topic_have_the_key(
    counted: CountedRecords, until_ms: int | None, numbers: tuple[int, int], why: str
) -> None:
    facts = TopicFacts(Topic("t", "dead letters", ()), 1, {"retention.ms": "86400000"})
    kept = kept_in(facts, ForgottenKey.of("anna"), WantedTombstones(), NOW_MS, counted)

    assert kept is not None
    assert (until_ms, numbers, True) == (kept.until_ms, (kept.records, kept.mentions), why in kept.why)


@pytest.mark.parametrize(
    ("typed", "record_key", "value", "expected"),
    [
        ("anna", b"anna", None, "has"),
        ("anna", b"x", b'{"who":"anna"}', "mentions"),
        ("anna", None, b"no JSON, anna", "mentions"),
        ("anna", None, b"\0\0\0\0\1\x08anna", "mentions"),
        ("anna", None, b"\0\0\0\0\1Aanna", "mentions"),
        ("anna", b"anna-1", b'{"who":"annabel","or":"Anna","und":"my_anna"}', ""),
        ("anna", b'{"id":"anna"}', b"{}", "mentions"),
        ("\u00e4", None, b'{"who":"\\u00e4"}', "mentions"),
        ('a"b', None, b'{"who":"a\\"b"}', "mentions"),
        ("*", None, b'{"who":"x"}', ""),
        ("17", b"17", None, "has"),
        ("17", None, b'{"id":17}', "mentions"),
        ("17", None, b'{"id":170}', ""),
        ('["a",1]', None, b'{"x":"a","y":1}', "mentions"),
        ('["a",1]', None, b'{"x":"a","y":2}', ""),
        ('"17"', b'"17"', None, "has"),
        ("", b"", None, "has"),
        ("", None, b'{"who":""}', ""),
        ("\udcff", b"\xff", None, "has"),
        ("\udcff", None, b"a \xff", "mentions"),
    ],
)
def test_key_is_found_in_record_keys_and_as_a_whole_word_elsewhere(
    typed: str, record_key: bytes | None, value: bytes | None, expected: str
) -> None:
    search, record = KeySearch(ForgottenKey.of(typed)), Raw(1, 1, record_key, value)
    found = "has" if search.has(record) else "mentions" if search.mentions(record) else ""

    assert expected == found


def test_headers_of_a_record_are_searched() -> None:
    search = KeySearch(ForgottenKey.of("anna"))

    assert [True, False] == [search.mentions(Raw(1, 1, None, None, (("h", value), ("n", None)))) for value in (b"of anna", b"of x")]


@pytest.mark.parametrize(
    ("typed", "why"), [("anna", "max.compaction.lag.ms unlimited"), ('"17"', "the group 17 has the same record key")]
)
def test_receipt_says_what_a_tombstone_does_or_why_there_is_none(typed: str, why: str) -> None:
    config = {"retention.ms": "1", "cleanup.policy": "compact", "max.compaction.lag.ms": str(2**63 - 1), "delete.retention.ms": "1"}
    kept = kept_in(TopicFacts(Topic("t", "output", ()), 1, config), ForgottenKey.of(typed), WantedTombstones(True), NOW_MS)

    assert kept is not None and why in kept.why


def test_receipt_has_a_digest_instead_of_the_key() -> None:
    receipt = Receipt(
        {"fold f": Counter({"open groups": 1, "x": 0, "tombstones": 2})},
        (),
        [Kept("topic t", "why", 5)],
        {TP("t", 0): TopicBounds(0, 9)},
    )
    key = ForgottenKey.of("anna")
    given = {"is_plan": False, "times": ("a", "b"), "by": "me", "reference": "r"}
    plain, named = (receipt.as_json(key, with_key=with_key, **given) for with_key in (False, True))  # type: ignore[arg-type]  # a table

    assert (None, "anna", True) == (plain["key"], named["key"], plain["complete"])
    assert "anna" not in str(plain)
    assert plain["sha256"] == key.digest(bytes.fromhex(plain["salt"])) != named["sha256"]
    assert [{"where": "fold f", "what": "open groups", "number": 1}] == plain["removed"]
    assert [{"where": "fold f", "what": "tombstones", "number": 2}] == plain["written"]
    assert [{"where": "topic t", "why": "why", "until_ms": 5, "records": None, "mentions": None}] == plain["not_removed"]
    assert [{"topic": "t", "partition": 0, "offset": 9}] == plain["read_up_to"]
