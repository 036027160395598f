"""Files of other projects that the console serves are those of their packages."""

from __future__ import annotations

import hashlib
import re

from streams_app.console.pages.rendering import STATIC

VENDOR = STATIC / "vendor"


def test_table_has_the_checksum_of_each_file() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [\d.]+ \| [^|]*\((\S+\.LICENSE)\) \| `(\w{64})` \|$",
                      (VENDOR / "README.md").read_text("utf-8"), re.MULTILINE)  # fmt: skip
    files = {found.name for found in VENDOR.iterdir() if found.name.endswith((".js", ".css"))}

    assert files == {name for name, _, _ in rows}
    assert all(digest == hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name, _, digest in rows)
    assert all((VENDOR / licence).is_file() for _, licence, _ in rows)
