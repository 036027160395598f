"""README and the pages of docs/ for tests."""

from __future__ import annotations

import re
import textwrap
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
    """Return the blocks of a language, also those in steps of a list, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def without_blocks(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
