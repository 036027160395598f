"""``backlog = "sessions"``: a replay gives the sessions computed offline, and those of Kafka Streams and Flink."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest
from aiokafka.structs import ConsumerRecord

from tests.helpers.folding.checker import Outcome
from tests.helpers.kafka.topics import read_topic
from tests.helpers.worker.site import LIMIT_SECONDS, DyingWorker, Site, send_at

EVENTS = int(os.environ.get("STREAMS_APP_TEST_EVENTS", "20000"))
HOUR_MS = 3_600_000
GAP_MS = 60_000

Session = tuple[bytes, int, int, int, tuple[str, ...]]
"""Group, events, first and last timestamp, changed names."""

Event = tuple[str, int, int]
"""Account, timestamp, number of its changed name."""


def jittered(count: int, groups: int, begin_ms: int) -> Iterator[Event]:
    """Return an hour of events, slightly out of order, with gaps on both sides of a minute."""
    chosen = random.Random(7)
    for number in range(count):
        at_ms = begin_ms + number * HOUR_MS // count + chosen.randrange(-3_000, 3_000)
        yield f"account_{min(chosen.randrange(groups), chosen.randrange(groups))}", at_ms, number


def many_groups(begin_ms: int) -> Iterator[Event]:
    """Return thousands of groups with one to three events."""
    chosen = random.Random(1)
    for number in range(6_000):
        yield f"account_{chosen.randrange(3_000)}", begin_ms + number * 500, number


def few_groups(begin_ms: int) -> Iterator[Event]:
    """Return three groups that share most of the events, and are silent only once."""
    for number in range(6_000):
        yield f"account_{number % 3}", begin_ms + number * 100 + (GAP_MS + 300 if number >= 4_000 else 0), number


def bursts_at_the_gap(begin_ms: int) -> Iterator[Event]:
    """Return bursts of every group, with gaps between them of the quiet period less 1 ms, exactly, and plus 1 ms."""
    number = 0
    for burst in range(12):
        for group in range(100):
            for event in range(3):
                start_ms = begin_ms + sum(2 + GAP_MS + (earlier + group) % 3 - 1 for earlier in range(burst))
                yield f"account_{group}", start_ms + event, number
                number += 1


def session_windows(events: Iterable[Event]) -> list[Session]:
    """Return windows as Kafka Streams and Flink define them for each group: windows [t, t + gap] that meet are one."""
    by_group: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for group, at_ms, number in events:
        by_group[group].append((at_ms, f"n{number % 50}"))
    found: list[Session] = []
    for group, items in by_group.items():
        items.sort()
        begin = 0
        for end in range(1, len(items) + 1):
            if end == len(items) or items[end][0] - items[end - 1][0] > GAP_MS:
                names = tuple(sorted({name for _, name in items[begin:end]}))
                found.append((group.encode(), end - begin, items[begin][0], items[end - 1][0], names))
                begin = end
    return sorted(found)


def sessions_of(log: Iterable[ConsumerRecord]) -> list[tuple[bytes, int, int, int]]:
    """Return group, events, first and last timestamp of each session; time is the newest timestamp of the partition so far."""
    by_partition: dict[int, list[ConsumerRecord]] = defaultdict(list)
    for record in log:
        by_partition[record.partition].append(record)
    found = []
    for records in by_partition.values():
        clock = 0
        open_sessions: dict[bytes, tuple[int, int, int, int]] = {}
        for record in sorted(records, key=lambda one: one.offset):
            clock = max(clock, record.timestamp)
            session = open_sessions.get(record.key)
            if session is not None and clock - session[0] > GAP_MS:
                found.append((record.key, *session[1:]))
                session = None
            stamps = (record.timestamp, record.timestamp) if session is None else session[2:]
            events = 1 if session is None else session[1] + 1
            open_sessions[record.key] = (clock, events, min(stamps[0], record.timestamp), max(stamps[1], record.timestamp))
        found += [(key, *session[1:]) for key, session in open_sessions.items()]
    return sorted(found)


def sessions_in(outcome: Outcome) -> list[Session]:
    """Return group, events, first and last timestamp of each folded record."""
    return sorted(
        (outcome.groups[fold_id], fold["events"], fold["first_event_ms"], fold["last_event_ms"], tuple(value["metrics"]))
        for fold_id, value in outcome.values.items()
        for fold in (value["fold"],)
    )


@pytest.mark.long
async def test_sessions_of_a_replay_match_an_offline_computation_even_across_sigkills(site: Site) -> None:
    await site.topics("events", "sessions", "events.dead")
    begin_ms = int(time.time() * 1000) - 2 * HOUR_MS
    await send_at(site, "events", jittered(EVENTS, EVENTS // 40, begin_ms))
    config = site.config(site.fold("sessions", "events", quiet_period="1m", backlog="sessions", max_hold="24h"))
    for point in ("after-fold:3", "after-produce:2"):
        with DyingWorker(config, site.folder, point) as worker:
            assert -9 == await worker.wait_exit(LIMIT_SECONDS)
    with site.worker(config):
        outcome = await site.outcome("sessions", EVENTS)
    log = await read_topic(
        site.bootstrap, site.names.topic("events"), until=lambda found: len(found) >= EVENTS, timeout_seconds=LIMIT_SECONDS
    )

    expected = sessions_of(log)
    assert len(expected) > EVENTS // 40
    assert expected == [session[:4] for session in sessions_in(outcome)]
    assert set() == outcome.differing


async def test_topics_of_three_shapes_yield_the_session_windows_of_kafka_streams_and_flink(site: Site) -> None:
    begin_ms = int(time.time() * 1000) - 3 * HOUR_MS
    shapes = {"many": many_groups(begin_ms), "few": few_groups(begin_ms), "bursts": bursts_at_the_gap(begin_ms)}
    events = {name: sorted(shape, key=lambda event: event[1]) for name, shape in shapes.items()}
    await site.topics(*(f"{name}{suffix}" for name in shapes for suffix in ("", ".out", ".dead")))
    for name, items in events.items():
        await send_at(site, name, items)
    folds = [
        site.fold(name, name, quiet_period="1m", backlog="sessions").replace(f'.{name}"\ndead', f'.{name}.out"\ndead')
        for name in shapes
    ]
    with site.worker(site.config("".join(folds))):
        outcomes = {name: await site.outcome(f"{name}.out", len(items)) for name, items in events.items()}

    for name, items in events.items():
        assert session_windows(items) == sessions_in(outcomes[name]), name
