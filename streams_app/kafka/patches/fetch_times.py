"""Patch of aiokafka's fetcher: it records at which time the request of each fetch reply was sent.

aiokafka records when it *processed* a reply. If the process was suspended (SIGSTOP, a frozen machine), a reply may have waited for
minutes: the end offset in the reply was current when the broker sent it, not when the process handled it.
"""

from __future__ import annotations

from typing import Any, Final

from aiokafka.structs import TopicPartition

from streams_app.clock import SystemClock

_ASKED: Final = "streams_app_asked_ms"
_clock: Final = SystemClock()


def watch(fetcher: Any) -> None:
    """Patch a fetcher to record when the request of each reply was sent, for :func:`asked_ms`. Further calls have no effect."""
    if _ASKED in vars(fetcher):
        return
    setattr(fetcher, _ASKED, True)
    process = fetcher._proc_fetch_request

    async def timed(assignment: Any, node_id: int, request: Any) -> Any:
        asked_ms = _clock.now_ms()
        states = (
            [assignment.state_value(TopicPartition(topic, part[0])) for topic, parts in request.topics for part in parts]
            if assignment.active
            else []
        )
        before = [state.timestamp for state in states]
        try:
            return await process(assignment, node_id, request)
        finally:
            for state, before_ms in zip(states, before, strict=True):
                if state.timestamp != before_ms:
                    setattr(state, _ASKED, asked_ms)

    fetcher._proc_fetch_request = timed


def asked_ms(state: Any) -> int | None:
    """Return the wall-clock time in ms at which a partition's last answered fetch was sent; None before the first reply."""
    found: int | None = getattr(state, _ASKED, None)
    return found
