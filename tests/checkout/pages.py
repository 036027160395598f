"""README and the pages of docs/ for tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "streams_app" / "kafka" / "patches" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
