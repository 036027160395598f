"""How long a replay of ten million events takes, and how much memory: a part of ``make bench ARGS="--tune"``.

``python -m benchmarks.tuning EVENTS LOAD...`` replays some loads alone.

Events are created in batches, as from a reader, and dropped; each load has a separate process. "Add" includes creating the
events.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.processes import memory_mb
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldInput
from streams_app.folding.core.names import mask_of
from streams_app.tuning.columns import Columns
from streams_app.tuning.recommending import default_windows
from streams_app.tuning.replay import curve_of

BEGIN_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
BATCH: Final = 5_000
LOADS: Final = {
    "hot": "Pareto over 100 000 groups, hold 6 h",
    "wide": "each event its own group, hold 6 h",
    "held": "1 000 groups, hold 1 m, at most 50 events",
    "long": "each event its own group, over 90 days, hold 60 d",
    "named": "Pareto over 100 000 groups, 3 of 100 names each, at most 20 names",
    "many": "1 000 000 groups at random, hold 6 h",
    "few": "3 groups, hold 1 m, at most 50 events",
    "names": "1 000 000 groups at random, 3 of 30 000 names each, at most 500 names",
}
BOUNDS: Final = {
    "held": Bounds(1, 60_000, 50, sessions=True),
    "few": Bounds(1, 60_000, 50, sessions=True),
    "names": Bounds(1, DAY_MS // 4, max_changed=500, sessions=True),
    "long": Bounds(1, 60 * DAY_MS, sessions=True),
    "named": Bounds(1, DAY_MS // 4, max_changed=20, sessions=True),
}


def batches(load: str, events: int) -> Iterator[list[FoldInput]]:
    """Yield the events of a load, which cover a day."""
    random = np.random.default_rng(7)
    names = [mask_of(dict.fromkeys(f"name_{(first + step) % 100}" for step in (0, 1, 3))) or 0 for first in range(100)]
    span_ms = 90 * DAY_MS if load == "long" else DAY_MS
    members_by_number: dict[int, bytes] = {}
    for begin in range(0, events, BATCH):
        stamps = BEGIN_MS + np.sort(random.integers(begin, begin + BATCH, BATCH)) * span_ms // events
        if load in ("wide", "long"):
            members = [b"saccount_%d" % number for number in range(begin, begin + BATCH)]
        else:
            numbers = _groups(load, random)
            members = [
                members_by_number.get(number) or members_by_number.setdefault(number, b"saccount_%d" % number)
                for number in numbers.tolist()
            ]
        changes: list[Any] = [names[(begin + at) % 100] for at in range(BATCH)]
        if load == "names":
            changes = [{f"name_{name}": None for name in each} for each in random.integers(30_000, size=(BATCH, 3)).tolist()]
        yield [
            (begin + at, stamp, member, changed)
            for at, (stamp, member, changed) in enumerate(zip(stamps.tolist(), members, changes, strict=True))
        ]


def _groups(load: str, random: np.random.Generator) -> NDArray[np.int64]:
    if load in ("many", "names"):
        return random.integers(1_000_000, size=BATCH)
    if load == "few":
        return random.integers(3, size=BATCH)
    count = 1_000 if load == "held" else 100_000
    return (random.pareto(1.2, BATCH) * count / 100).astype(np.int64) % count


def measured(load: str, events: int) -> dict[str, Any]:
    """Replay one load in this process."""
    bounds = BOUNDS.get(load, Bounds(1, 6 * 3_600_000, sessions=True))
    columns = Columns(now_ms=BEGIN_MS * 2, max_changed=bounds.max_changed)
    began = time.perf_counter()
    for batch in batches(load, events):
        columns.add(0, batch)
    added = time.perf_counter()
    added_mb = _peak_mb()
    gaps = columns.gaps()
    sorted_at = time.perf_counter()
    windows = default_windows(columns.to_ms - columns.from_ms, gaps or (1_000, DAY_MS))
    curve = curve_of(load, columns, bounds, windows)
    return {
        "load": load, "events": curve.events, "share": columns.share, "candidates": len(windows),
        "add_seconds": round(added - began, 1), "sort_seconds": round(sorted_at - added, 1),
        "curve_seconds": round(time.perf_counter() - sorted_at, 1), "added_mb": added_mb, "peak_mb": _peak_mb(),
        "records": [point.records for point in curve.points][::6],
    }  # fmt: skip


def _peak_mb() -> int:
    return round(memory_mb(os.getpid(), "VmHWM") or 0)


def main(arguments: list[str]) -> None:
    """Print a line for each load; the first argument is the number of events, the others are names of loads."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(measured(arguments[1], int(arguments[2]))))
        return
    events = arguments[0] if arguments else "10000000"
    for load in arguments[1:] or LOADS:
        print(f"{load}: {LOADS[load]}")
        own = [sys.executable, "-m", "benchmarks.tuning", "--one", load, events]
        subprocess.run(own, check=True, cwd=Path(__file__).parent.parent)


if __name__ == "__main__":
    main(sys.argv[1:])
