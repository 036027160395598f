"""When the cores stood still: the host of a virtual machine takes them away, all at once where it has a quota for their time.

On each core a process of real-time priority sleeps for 2 ms and notes when that took much longer: no other process of this machine
can have been the cause. Where such a priority is not allowed (it takes root, or ``CAP_SYS_NICE``), nothing is known.
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
"""Shorter ones are not noted."""
PRIORITY: Final = 50


class Standstills:
    """What the processes have noted."""

    def __init__(self, children: list[Child]) -> None:
        self._children = children

    def longest_ms(self, begin: float, end: float) -> float | None:
        """The longest one that ended between two moments of the wall clock, in s; 0: none of 8 ms. None: not known."""
        if not self._children or not all(child.is_running for child in self._children):
            return None
        noted = [line.split() for child in self._children for line in child.log_path.read_text().splitlines()]
        return max((float(line[1]) for line in noted if len(line) == 2 and begin <= float(line[0]) <= end), default=0.0)


@contextmanager
def watched() -> Iterator[Standstills]:
    """Watches every core this process may use until the block ends."""
    with ExitStack() as stack:
        children = []
        for core in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setscheduler") else ():
            child = Child("standstill", [sys.executable, os.path.abspath(__file__), str(core)])
            stack.callback(child.stop)
            children.append(child)
        yield Standstills(children)


def _note_forever(core: int) -> None:
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
    _note_forever(int(sys.argv[1]))
