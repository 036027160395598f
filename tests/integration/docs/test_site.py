"""The site of the documentation, as Zensical builds it."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.checkout.site import navigation, publish

if importlib.util.find_spec("zensical") is None and not os.environ.get("CI"):
    pytest.skip("zensical is not installed: `make install`", allow_module_level=True)


def test_published_site_has_each_page_its_markdown_the_search_and_its_version(tmp_path: Path) -> None:
    publish(tmp_path, "0.1.0")
    site = tmp_path / "0.1.0"
    found = {entry["location"].partition("#")[0] for entry in json.loads((site / "search.json").read_text("utf-8"))["items"]}

    assert [] == [name for _, name in navigation() if not (site / name).is_file()]
    pages = {name.replace(".md", ".html") for _, name in navigation()}
    assert pages - {"changelog.html", "contributing.html"} == found
    assert [{"version": "0.1.0", "title": "0.1.0", "aliases": []}] == json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert "llms.txt" in {path.name for path in site.iterdir()}
