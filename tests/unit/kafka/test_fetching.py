"""Which partitions aiokafka fetches while fetched records wait to be taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.structs import TopicPartition

from streams_app.kafka.fetching import PREFETCH_BACKOFF

TAKEN, WAITING = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(("backoff", "expected"), [(PREFETCH_BACKOFF, [TAKEN.partition]), (60.0, [])])
def test_partition_is_fetched_while_records_of_another_one_wait(backoff: float, expected: list[int]) -> None:
    state = SimpleNamespace(has_valid_position=True, paused=False, position=0)
    assignment = SimpleNamespace(tps=[TAKEN, WAITING], state_value=lambda _: state)
    fetcher: Any = Fetcher.__new__(Fetcher)
    waiting: Any = FetchResult(WAITING, assignment=assignment, partition_records=None, backoff=backoff)
    waiting._created -= 0.01  # it has waited so long, in seconds
    vars(fetcher).update(
        _records={WAITING: waiting},
        _in_flight=set(), _fetch_max_wait_ms=1, _fetch_min_bytes=1, _fetch_max_bytes=1, _max_partition_fetch_bytes=1,
        _isolation_level=0, _fetcher_timeout=1, _preferred_read_replica={},
        _client=SimpleNamespace(_client_rack="", cluster=SimpleNamespace(leader_for_partition=lambda _: 1)), _client_rack="",
    )  # fmt: skip
    requests = fetcher._get_actions_per_node(assignment)[0]

    assert expected == [number for _, request in requests for _, parts in request.topics for number, *_ in parts]
