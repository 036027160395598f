"""CPU time and memory of processes, from the kernel's own books: `/proc`. Elsewhere nothing is known, and said so."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int | None) -> float | None:
    """User and system time of a process with all its threads; None where that cannot be told."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int, field: str) -> float | None:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of a process."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


def stolen_seconds() -> float | None:
    """CPU time of all cores that their host gave to others ("steal"): a virtual core stands still then, for 20 ms and more."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return None
    return int(fields[8]) / _TICKS


class CpuWatch:
    """CPU seconds by process since a moment, and what was ``stolen`` from all of them."""

    def __init__(self, pids: Mapping[str, int | None]) -> None:
        self._pids = dict(pids)
        self._before = self._now()

    def used(self) -> dict[str, float]:
        """Since the watch was made; processes of which nothing is known are left out."""
        found = {}
        for name, now in self._now().items():
            before = self._before[name]
            if before is not None and now is not None:
                found[name] = round(now - before, 2)
        return found

    def _now(self) -> dict[str, float | None]:
        return {**{name: cpu_seconds(pid) for name, pid in self._pids.items()}, "stolen": stolen_seconds()}


def machine() -> str:
    """Python, cores and how busy they are: what a figure depends on besides the servers."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"Python {platform.python_version()}, {os.cpu_count()} cores{load}"
