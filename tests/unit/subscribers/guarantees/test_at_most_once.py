"""Commits of begins: which events may start, and which successes no commit includes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.scripts import FencedError
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.guarantees import at_most_once
from streams_app.subscribers.guarantees.at_most_once import BeginCommits
from streams_app.subscribers.state.offset_metadata import decoded
from streams_app.subscribers.state.offset_tracker import OffsetTracker

EVENTS = 40


def begun_partition(commit_now: AsyncMock) -> tuple[SubscriberPartition, list[Attempt]]:
    """Return a claimed partition, and an attempt for each of its events, all of which Redis has recorded as begun."""
    context: Any = MagicMock()
    claim: Any = MagicMock(topic_id="", commit_now=commit_now)
    partition = SubscriberPartition(TP("orders", 0), context, lambda events: None)
    tracker = OffsetTracker(0)
    partition.restore(claim, tracker, ())
    # Gaps between the offsets, so that each begun event needs room in the metadata.
    offsets = [3 * number for number in range(EVENTS)]
    tracker.begin(tracker.cover(0, 3 * EVENTS, offsets))
    return partition, [Attempt(None, InFlightEvent(SimpleNamespace(offset=offset), 0)) for offset in offsets]


def begun_in(position: OffsetAndMetadata) -> list[int]:
    metadata = decoded(position.metadata, position.offset, 3 * EVENTS)
    assert metadata is not None
    return list(metadata.above.begun)


async def test_begin_without_room_in_the_metadata_is_neither_committed_nor_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_most_once, "MAX_METADATA_BYTES", 40)
    commit_now = AsyncMock()
    partition, attempts = begun_partition(commit_now)
    commits = BeginCommits(partition)
    started = await commits.commit_begun(attempts)
    (position,) = commit_now.call_args.args

    assert 0 < len(started) < EVENTS
    assert [attempt.in_flight_event.offset for attempt in started] == begun_in(position)
    assert (True, 1) == (commits.is_full, partition.start_limit)


async def test_lowest_unfinished_event_starts_even_if_the_metadata_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_most_once, "MAX_METADATA_BYTES", 0)
    partition, attempts = begun_partition(AsyncMock())

    assert [attempts[0]] == await BeginCommits(partition).commit_begun(attempts)


async def test_success_is_uncommitted_until_a_commit_is_acknowledged() -> None:
    commit_now = AsyncMock(side_effect=[NotOwnerError, TimeoutError, None])
    partition, attempts = begun_partition(commit_now)
    commits = BeginCommits(partition)
    commits.uncommitted[0] = attempts[0].in_flight_event
    with pytest.raises(FencedError):
        await commits.commit()
    with pytest.raises(TimeoutError):
        await commits.commit()
    unanswered = dict(commits.uncommitted)
    await commits.commit()

    assert {0: attempts[0].in_flight_event} == unanswered
    assert {} == commits.uncommitted
