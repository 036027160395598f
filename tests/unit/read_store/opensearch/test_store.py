"""OpenSearch settings that are checked before a connection, and the requests made of a batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import orjson
import pytest

from streams_app.errors import ConfigurationError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.core.store import NotStorableError
from streams_app.read_store.opensearch.connection import Fault, parts
from streams_app.read_store.opensearch.documents import Shape, document_id, is_field
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings

URL = "opensearch+https://u:s3cret@search:9200"


def settings(**given: object) -> ReadStoreSettings:
    return ReadStoreSettings.model_validate({"name": "dashboard", "url": URL, "folds": ["f"], "source": "carried", **given})


@pytest.mark.parametrize(
    "url",
    ["opensearch+http://", "opensearch+ftp://u:s3cret@h", "opensearch+https://u:s3c/ret@h", "opensearch+https://u:s3cret@h:x",
     "opensearch+https://u:s3cret@h?pretty", "opensearch+https://u:s3cret@[h", "elasticsearch+https://u:s3cret@h:x",
     "opensearch+http://app:12/s3c@h", "opensearch+https://app:12/prefix/s3c@h:9200", "opensearch+https://u:s3cret@[h]:9200",
     "opensearch+https://u:s3cret@a,[::1]", "opensearch+https://u:s3cret@"],
)  # fmt: skip
def test_invalid_url_is_rejected_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"read_stores\.dashboard\.url: expected opensearch\+https://USER@HOST") as caught:
        open_store(settings(url=url))

    assert all(secret not in str(caught.value) for secret in ("s3c", "12"))


@pytest.mark.parametrize("address", ["u:p[@[::1]:9200", "u:]p@h", "h:9200/prefix"])
def test_url_with_an_ipv6_address_or_brackets_in_the_password_is_accepted(address: str) -> None:
    assert open_store(settings(url=f"opensearch+https://{address}"))


def test_integer_python_cannot_format_is_rejected() -> None:
    reason = open_store(settings()).rejection(CellChange(Cell("f", "a", "likes"), 1, 10**5000))

    assert "the value is an integer of more than 4000 digits" == reason


async def test_value_nested_too_deeply_for_the_parser_is_not_storable() -> None:
    deep, usual = Cell("f", "a", "likes"), Cell("f", "b", "likes")
    with pytest.raises(NotStorableError, match="nested more deeply") as caught:
        await open_store(settings()).as_stored(
            [CellChange(deep, 1, JsonText("[" * 200_000 + "]" * 200_000)), CellChange(usual, 1, 1)]
        )

    assert {deep} == caught.value.cells.keys()


@pytest.mark.parametrize("table", ["Values", "_values"])
def test_table_that_is_no_valid_index_name_is_rejected(table: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name of an index"):
        open_store(settings(table=table))


def test_missing_driver_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opensearchpy", None)
    for name in [name for name in sys.modules if name.startswith("streams_app.read_store.opensearch")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(ConfigurationError, match="opensearch-py is not installed; pip install opensearch-py"):
        open_store(settings())


def test_document_id_is_stable_and_unique_for_each_cell() -> None:
    parts = [("f", "a", "b"), ("f", "a|b"), ("f", 'a","b'), ("f", "a" * 600, "b"), ("f", "a" * 601, "b"), ("f", "ä" * 255)]
    ids = [document_id(each) for each in parts]

    assert ids == [document_id(each) for each in parts]
    assert len(set(ids)) == len(ids)
    assert max(len(each.encode()) for each in ids) <= 512


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("likes", True),
        ("Ä b*", True),
        ("a.b", False),
        ("", False),
        (" ", False),
        ("_id", False),
        ("versions", False),
        ("fold", False),
    ],
)
def test_name_is_a_field_if_a_document_permits_it(name: str, expected: bool) -> None:
    assert expected == is_field(name)


def test_batch_is_one_request_and_is_split_only_by_bytes() -> None:
    items = Shape("cells", {}).items([CellChange(Cell("f", "a", f"n{n}"), 1, "x" * 300) for n in range(100)], 0)
    size = len(items[0].body)

    assert [items] == list(parts(items))
    assert [1, 99] == sorted({len(part) for part in parts(items[:99], size * 100)} | {len(part) for part in parts(items[:2], 10)})
    assert items == [item for part in parts(items, size * 7) for item in part]


def test_group_is_one_item_with_any_number_of_names() -> None:
    changes = [CellChange(Cell("f", group, name), 1, 1) for name in ("x", "y", "z") for group in ("a", "b")]
    items = Shape("groups", {}).items(changes, 0)

    assert [("a", 3), ("b", 3)] == [(item.changes[0].cell.group_key, len(item.changes)) for item in items]


def test_name_has_the_field_of_its_declared_column_or_none() -> None:
    shape = Shape("groups", {"click-rate": "click_rate"})
    (item,) = shape.items([CellChange(Cell("f", "a", "click-rate"), 1, 7)], 0)

    assert [1, 7, "click_rate", True] == parameters(item.body)["names"]["click-rate"]
    assert "the name has no column" == shape.rejection(CellChange(Cell("f", "a", "likes"), 1, 7))


def test_changed_script_has_another_name() -> None:
    assert Shape("cells", {}).script_name != Shape("groups", {}).script_name


def test_fault_is_reported_by_its_deepest_reason_without_the_value() -> None:
    error = {
        "type": "mapper_parsing_exception",
        "reason": "failed to parse field [likes] of type [long] in document with id 'x'. Preview of field's value: 's3cret'",
        "caused_by": {"type": "illegal_argument_exception", "reason": "no number"},
    }

    assert Fault(
        400, "mapper_parsing_exception", "failed to parse field [likes] of type [long] in document with id 'x': no number"
    ) == (Fault.of(400, error))


def parameters(body: bytes) -> Mapping[str, Mapping[str, object]]:
    """Return the script parameters of an item."""
    found: Mapping[str, Mapping[str, object]] = orjson.loads(body.splitlines()[1])["script"]["params"]
    return found
