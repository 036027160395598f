"""``make bench-console`` with tiny sizes: the table contains each row, with its goal and whether it was reached."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from tests.servers.cache import ROOT

ROWS = ["overview", "fold", "group", "topic", "dead letters", "workers", "settings", "search", "browsers on the overview"]


@pytest.mark.long
async def test_console_benchmark_reports_each_figure_with_its_goal() -> None:
    bench = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.console", "--scale", "0.01", cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await bench.communicate()
    text = output.decode()
    assert bench.returncode == 0, text
    _, size, *rows, verdict = text.splitlines()

    assert "2 folds, 2 partitions, 1,000 open groups, 10,000 dead letters" == size
    assert len(rows) == len(ROWS), text
    for row, name in zip(rows, ROWS, strict=True):
        assert name in row
        assert re.search(r" [-\d.e+]+ ms  goal +[\d.]+ ms|\d%  goal +[\d.]+%", row), row
    reached = sum("  reached" in row for row in rows)
    assert verdict.startswith(f"{reached} of {len(rows)} goals are reached")
