"""The table of the keys of a shard lists all that the scripts write."""

from __future__ import annotations

import re
from dataclasses import fields

from streams_app.folding.store import keys
from tests.test_house import PACKAGE

TABLE = keys.__doc__ or ""


def written_fields() -> set[str]:
    """Return the fields of ``meta`` that the scripts of a shard write or read."""
    paths = [*(PACKAGE / "folding/store/lua").rglob("*.lua"), PACKAGE / "delivery/lua/fenced.lua"]
    texts = [re.sub(r"--.*", "", path.read_text("utf-8")) for path in paths]
    calls = [call for text in texts for call in re.findall(r"(?:'H(?:SET|DEL)', meta,|read_marks\()(.*?)\)(?=\s)", text, re.DOTALL)]
    return {name for call in calls for name in re.findall(r"'([a-z]\w+)'", call)}


def test_table_has_every_key_of_a_shard() -> None:
    documented = {key.partition(":")[0] for key in re.findall(r"^``([^`{(]+)``  ", TABLE, re.MULTILINE)}

    assert {field.name.removesuffix("_prefix") for field in fields(keys.ShardKeys)} == documented


def test_table_has_every_field_of_meta() -> None:
    contents = TABLE.partition("``meta``")[2].partition("``due``")[0]

    assert {"record_clock", "lost", "learned"} < written_fields()
    assert set() == {name for name in written_fields() if not re.search(rf"\b{name}\b", contents)}
