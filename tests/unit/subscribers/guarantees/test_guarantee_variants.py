"""Each broken variant of a delivery guarantee fails the test of the part that it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from streams_app.subscribers.declaration.replayed_event import replay_headers
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_tracker import OffsetsAbove
from tests.simulation.mutants_guarantees import SHOWN_BY_TESTS
from tests.unit.events import test_headers
from tests.unit.subscribers.execution import test_replayed_events, test_retries
from tests.unit.subscribers.guarantees import test_guarantees
from tests.unit.subscribers.running import test_subscriber_isolation
from tests.unit.subscribers.state import test_offset_metadata

LOW = test_offset_metadata.LOW

SHOWN_BY: dict[str, Callable[[], object]] = {
    "metadata beyond the end of the log is accepted": partial(
        test_offset_metadata.test_metadata_beyond_the_log_end_is_invalid, OffsetsAbove((Interval(LOW + 1, LOW + 3),))
    ),
    "attempts count while the circuit breaker is open": test_retries.test_failures_during_an_outage_count_only_after_patience,
    "waiting retries stop the reader": partial(
        test_guarantees.test_event_waiting_for_its_next_attempt_does_not_stop_the_reader, "yes"
    ),
    "a replayed event is delivered to all subscribers": partial(
        test_replayed_events.test_event_for_another_subscriber_or_for_none_is_skipped,
        replay_headers("recompute", test_replayed_events.ORIGIN, test_replayed_events.EVENT),
    ),
    "ids of published events are random": test_headers.test_repeated_attempt_derives_the_same_ids,
    "a worker chooses the initial offset of at most once": lambda: asyncio.run(
        test_guarantees.test_partition_without_a_commit_is_not_claimed_for_at_most_once()
    ),
    "subscribers share a thread pool": (
        test_subscriber_isolation.test_function_that_occupies_all_threads_does_not_delay_another_subscriber
    ),
}


@pytest.mark.parametrize("name", SHOWN_BY_TESTS)
def test_broken_variant_fails_its_test(name: str) -> None:
    SHOWN_BY[name]()
    with SHOWN_BY_TESTS[name].applied(), pytest.raises((AssertionError, pytest.fail.Exception)):
        SHOWN_BY[name]()
