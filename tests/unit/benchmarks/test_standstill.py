"""Standstills of the machine are distinguished from slow scripts."""

from __future__ import annotations

import os
import signal
import time

import pytest

from benchmarks.standstill import Standstills, watched
from tests.helpers.waiting import wait_until_sync


def _children(standstills: Standstills) -> list[int]:
    return [child.pid for child in standstills._children]


def _may_be_real_time() -> bool:
    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, before, os.sched_param(0))
    return True


needs_priority = pytest.mark.skipif(
    not hasattr(os, "sched_setscheduler") or not _may_be_real_time(), reason="real-time priority is not allowed"
)


@needs_priority
def test_stalled_core_is_reported_with_its_time() -> None:
    with watched() as standstills:
        wait_until_sync(lambda: all(_is_real_time(pid) for pid in _children(standstills)), 60, "they watch")
        begin = time.time()
        stopped = _children(standstills)[0]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(0.1)  # the standstill to be recorded
        os.kill(stopped, signal.SIGCONT)
        # A shorter standstill of the machine itself may be recorded first.
        wait_until_sync(lambda: (standstills.longest_ms(begin, time.time()) or 0) >= 90, 60, "it is recorded")

        assert 0 == standstills.longest_ms(begin - 20, begin - 10)
        os.kill(stopped, signal.SIGKILL)
        wait_until_sync(lambda: standstills.longest_ms(begin, time.time()) is None, 60, "a watcher that is gone knows nothing")
    assert not any(child.is_running for child in standstills._children)


def test_longest_stall_is_none_without_watchers() -> None:
    assert Standstills([]).longest_ms(0, time.time()) is None


def _is_real_time(pid: int) -> bool:
    return os.sched_getscheduler(pid) == os.SCHED_FIFO
