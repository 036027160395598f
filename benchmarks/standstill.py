"""Standstills of cores: the host of a virtual machine may stop a core, or all cores at once if their time has a quota.

On each core, a process with real-time priority sleeps for 2 ms and records each sleep that took much longer: no other process of
this machine can be the cause. Without the right to this priority (root, or ``CAP_SYS_NICE``), standstills are unknown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from streams_app.embedded.child import Child

SLEEP_SECONDS: Final = 0.002
LEAST_SECONDS: Final = 0.008
"""Shorter standstills are not recorded."""
PRIORITY: Final = 50


class Standstills:
    """The recorded standstills."""

    def __init__(self, children: list[Child]) -> None:
        self._children = children

    def longest_ms(self, begin: float, end: float) -> float | None:
        """Return the longest one that ended between two wall-clock times, in s; 0 if none reached 8 ms, None if unknown."""
        if not self._children or not all(child.is_running for child in self._children):
            return None
        lines = [line.split() for child in self._children for line in child.log_path.read_text().splitlines()]
        return max((float(line[1]) for line in lines if len(line) == 2 and begin <= float(line[0]) <= end), default=0.0)


@contextmanager
def watched() -> Iterator[Standstills]:
    """Watch every core that this process may use until the end of the block."""
    with ExitStack() as stack:
        children = []
        for core in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setscheduler") else ():
            child = Child("standstill", [sys.executable, os.path.abspath(__file__), str(core)])
            stack.callback(child.stop)
            children.append(child)
        yield Standstills(children)


def _print_standstills(core: int) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    last = time.monotonic()
    while True:
        time.sleep(SLEEP_SECONDS)
        now = time.monotonic()
        if now - last >= LEAST_SECONDS:
            print(f"{time.time():.3f} {(now - last) * 1000:.1f}", flush=True)
        last = now


if __name__ == "__main__":
    _print_standstills(int(sys.argv[1]))
