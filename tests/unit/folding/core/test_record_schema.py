"""The JSON Schema of folded records, by which other programs validate them."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from streams_app.folding.core.closing import REASONS
from streams_app.folding.core.kept_events import packed_events
from streams_app.folding.core.record import MAX_RECORD_BYTES, RecordShape, SealedGroup, render
from tests.checkout.reference import RECORD_SCHEMA, with_reasons
from tests.helpers.kafka.records import kept

SCHEMA = json.loads((files("streams_app") / "folded-record.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def sealed(**changes: Any) -> SealedGroup:
    values: dict[str, Any] = {
        "member": b"saccount_1", "first_offset": 1041, "last_offset": 1077, "events": 4, "first_event_ms": 1_700_000_000_000,
        "last_event_ms": 1_700_000_009_000, "reason": "quiet", "due_ms": 0, "partitions": 4, "names": {"likes": b"1"},
    }  # fmt: skip
    return SealedGroup(**(values | changes))


def test_schema_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_schema_lists_the_reasons_of_the_code() -> None:
    text = RECORD_SCHEMA.read_text("utf-8")

    assert with_reasons(text) == text, "run `make docs`, which is `python -m tests.checkout.reference`"
    assert [*REASONS] == SCHEMA["properties"]["fold"]["properties"]["reason"]["enum"]


@pytest.mark.parametrize("keep", ["names", "last"])
@pytest.mark.parametrize("reason", REASONS)
def test_record_conforms_to_the_schema(keep: str, reason: str) -> None:
    (record,) = render(sealed(reason=reason), RecordShape("account-metrics", ("account_id",), "metrics", keep), "events", 3)

    VALIDATOR.validate(json.loads(record.value))


@pytest.mark.parametrize(
    ("keep", "names"), [("events", {"0": packed_events(kept((0, b"{}")), 0)}), ('{"likes":"sum"}', {"likes": b"1"})]
)
def test_record_of_events_or_aggregates_conforms_to_the_schema(keep: str, names: dict[str, bytes]) -> None:
    (record,) = render(sealed(names=names), RecordShape("f", ("account_id",), "metrics", keep), "events", 3)

    VALIDATOR.validate(json.loads(record.value))


def test_parts_of_a_split_record_conform_to_the_schema() -> None:
    names = {f"{i:05}" * 20: b"" for i in range(MAX_RECORD_BYTES // 60)}
    records = render(sealed(names=names), RecordShape("f", ("a",), "m", "names"), "t", 0)

    assert len(records) > 1
    for record in records:
        VALIDATOR.validate(json.loads(record.value))


@pytest.mark.parametrize(
    ("key", "value"),
    [("id", "no id"), ("reason", "because"), ("events", 0), ("version", 2**53), ("first_event_ms", "1"), ("more", 1)],
)
def test_other_values_do_not_conform_to_the_schema(key: str, value: Any) -> None:
    (record,) = render(sealed(), RecordShape("f", ("a",), "m", "names"), "t", 0)
    decoded = json.loads(record.value)
    decoded["fold"][key] = value

    assert not VALIDATOR.is_valid(decoded)
