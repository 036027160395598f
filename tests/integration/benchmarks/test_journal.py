"""``make bench-journal`` with tiny sizes: the table contains each row, with its goal and whether it was reached."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from benchmarks.journal_rows import LOADS
from streams_app.journal.store.journal_store import JournalScripts
from tests.servers.cache import ROOT

ROWS = [
    *(f"Redis bytes an event, {form}, {load.name} " for load in LOADS for form in ("open", "packed")),
    "quiet keys, packed, of a stream a key and day",
    *(f"appended a second of Redis' core, {load.name} " for load in LOADS if load.append),
    "received MB packed a second",
    "30 days, of a stream a key",
    "first entry of a key",
    "one key of a packed segment",
    *(f"longest time of {name}.lua in Redis" for name in JournalScripts.names()),
    "event -> follower of its key, p99",
    "filed a second, of bare reading, hot",
    "folding a backlog loses while the same worker files it",
    "folding a backlog loses while a worker of its own files it",
    "folding loses while the same worker files, caught up",
    "filed a second, of bare reading, wide",
]


@pytest.mark.long
async def test_journal_benchmark_reports_each_figure_with_its_goal() -> None:
    command = [sys.executable, "-m", "benchmarks.journal", "--scale", "0.02"]
    bench = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await bench.communicate()
    text = output.decode()
    assert bench.returncode == 0, text
    _, *rows, verdict = text.splitlines()

    assert len(rows) == len(ROWS), text
    for name in ROWS:
        assert sum(row.startswith(name) for row in rows) == 1, f"{name}\n{text}"
    for row in rows:
        assert re.search(r" [-\d.e+]+ (x|B|s|ms|MB/s|events)  goal +[\d.]+ (x|B|s|ms|MB/s|events)|\d%  goal +[\d.]+%", row), row
        assert re.search(r"  (reached|MISSED) ?", row), row
    # Each script was called by name: a digest that matches nothing would leave its row empty.
    assert not [row for row in rows if "longest time of" in row and re.search(r"\.lua in Redis +0 ms", row)], text
    reached = sum("  reached" in row for row in rows)
    assert verdict.startswith(f"{reached} of {len(rows)} goals are reached")
    assert ("missed: " in verdict) == (reached < len(rows))
