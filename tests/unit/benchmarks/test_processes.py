"""Process statistics that benchmarks read from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.processes import CpuWatch, stolen_seconds

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no such books here")


def test_cpu_time_counts_the_process_since_the_watch_began() -> None:
    watch = CpuWatch({"me": os.getpid(), "nobody": None, "gone": 2**22 + 1})
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    used = watch.used()

    assert {"me", "stolen"} == used.keys()
    assert 0.08 <= used["me"]


def test_stolen_time_is_the_eighth_field_of_proc_stat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "cpu  1 2 3 4 5 6 7 800 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    monkeypatch.setattr(processes, "_TICKS", 100)

    assert 8.0 == stolen_seconds()
