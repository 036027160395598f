"""``make bench-live`` with tiny sizes: the table contains each row, with its goal and whether it was reached."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from tests.servers.cache import ROOT

ROWS = [
    "Redis' CPU of an event, 10 pages",
    "Redis' CPU of an event, 1,000 pages",
    "sets of 25 items",
    "200 requests/s for one of them",
    "bytes an item, a count, 128 a page",
    "bytes an item, a count, 1 000 a page",
    "bytes an item, a list with payloads of 200 B",
    "items due at once are gone",
    "of a count",
    "others a shard",
    "of a list of 10",
    "10 000 changes/s of pages nobody has open",
    "4 states/s each, part of a core",
    "memory of the hub",
    "stalled, p99 of the others",
    "event -> socket, p99",
    "expiry -> socket, p99",
]


@pytest.mark.long
async def test_live_view_benchmark_reports_each_figure_with_its_goal() -> None:
    command = [sys.executable, "-m", "benchmarks.live", "--scale", "0.05"]
    bench = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await bench.communicate()
    text = output.decode()
    assert bench.returncode == 0, text
    _, *rows, verdict = text.splitlines()

    assert len(rows) == len(ROWS), text
    for row, name in zip(rows, ROWS, strict=True):
        assert name in row
        assert re.search(r" [-\d.e+]+ (x|%|MB|B|s)  goal +[\d.]+ (x|%|MB|B|s)|\d%  goal +[\d.]+%", row), row
        assert re.search(r"  (reached|MISSED) ?", row), row
    reached = sum("  reached" in row for row in rows)
    assert verdict.startswith(f"{reached} of {len(rows)} goals are reached")
    assert ("missed: " in verdict) == (reached < len(rows))
