"""CPU time and memory of processes from `/proc`. On a system without it, the values are None."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int | None) -> float | None:
    """Return user and system time of a process with all its threads; None if unknown."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int, field: str) -> float | None:
    """Return ``VmRSS`` (current) or ``VmHWM`` (peak) of a process."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


def stolen_seconds() -> float | None:
    """Return the steal time of all cores: while the host gives a core to others, it stops for 20 ms and more."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return None
    return int(fields[8]) / _TICKS


class CpuWatch:
    """CPU seconds by process since the creation of the watch, and the ``stolen`` time of all cores."""

    def __init__(self, pids: Mapping[str, int | None]) -> None:
        self._pids = dict(pids)
        self._before = self._now()

    def used(self) -> dict[str, float]:
        """Return the CPU seconds since the creation of the watch, without unknown processes."""
        found = {}
        for name, now in self._now().items():
            before = self._before[name]
            if before is not None and now is not None:
                found[name] = round(now - before, 2)
        return found

    def _now(self) -> dict[str, float | None]:
        return {**{name: cpu_seconds(pid) for name, pid in self._pids.items()}, "stolen": stolen_seconds()}


def machine() -> str:
    """Describe Python, cores and load, on which a figure depends besides the servers."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"Python {platform.python_version()}, {os.cpu_count()} cores{load}"
