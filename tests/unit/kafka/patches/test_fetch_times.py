"""A fetch reply has the time of its request, however late it is processed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from streams_app.kafka.patches import fetch_times
from tests.helpers.manual_clock import ManualClock

TP = TopicPartition("t", 0)


class Fetcher:
    """The part of aiokafka's fetcher that is used: it records when it processes a reply."""

    def __init__(self, clock: ManualClock, *, is_answered: bool) -> None:
        self.clock = clock
        self.is_answered = is_answered

    async def _proc_fetch_request(self, assignment: Any, _: int, __: Any) -> bool:
        self.clock.advance_ms(60_000)  # the process was stopped
        if self.is_answered:
            assignment.state_value(TP).timestamp = self.clock.now_ms()
        return True


@pytest.mark.parametrize(("is_answered", "expected"), [(True, 1_000), (False, None)])
def test_reply_has_the_time_of_its_request(monkeypatch: pytest.MonkeyPatch, is_answered: bool, expected: int | None) -> None:
    clock = ManualClock(1_000)
    monkeypatch.setattr(fetch_times, "_clock", clock)
    state = SimpleNamespace(timestamp=None)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    fetcher = Fetcher(clock, is_answered=is_answered)
    fetch_times.watch(fetcher)
    fetch_times.watch(fetcher)

    assert asyncio.run(fetcher._proc_fetch_request(assignment, 1, SimpleNamespace(topics=[("t", [(0, 5, 1)])])))
    assert expected == fetch_times.asked_ms(state)
