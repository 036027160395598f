"""The page ``docs/explained/compared.md``: facts from the documentation and issues of others; ``make docs`` writes its table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.comparison import bullmq, inngest, kafka_streams, trigger_dev, windmill

CASES: Final = (*inngest.CASES, *windmill.CASES, *trigger_dev.CASES, *bullmq.CASES, *kafka_streams.CASES)
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "explained" / "compared.md"
BEGIN, END = "<!-- cases -->", "<!-- /cases -->"


def table() -> str:
    """The table of the cases, in Markdown."""
    lines = ["| case | there | here | how |", "|---|---|---|---|"]
    lines += [
        f"| {found.project}: [{found.name}]({found.url}) | {found.theirs} | **{found.verdict}** | {found.ours} |" for found in CASES
    ]
    return "\n".join(lines)


def written() -> str:
    """The page as the cases have it; what is around the table is written by hand."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"
