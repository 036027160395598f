"""Sessions in event time by Bytewax, without a recovery store, up to the end of the topic: at the end, it closes what is open.

Run by ``python -m bytewax.run benchmarks.stream_processors.by_bytewax:flow``, by the Python in which Bytewax is installed.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing

Event: TypeAlias = tuple[int, list[str]]
Session: TypeAlias = tuple[int, int, int, frozenset[str]]

BEGAN = Path(os.environ["SESSIONS_BEGAN"])
STILL = datetime.now(UTC)
NONE: Session = (2**62, 0, 0, frozenset())


def read(messages: list[Any]) -> list[tuple[str, Event]]:
    """Return the account of each message, with its time and the names that it changes."""
    if messages and not BEGAN.exists():
        BEGAN.touch()
    found = []
    for message in messages:
        event = orjson.loads(message.value)
        found.append((event["account_id"], (message.timestamp[1], list(event["metrics"]))))
    return found


def time_of(event: Event) -> datetime:
    """Return the time of an event."""
    return datetime.fromtimestamp(event[0] / 1000, UTC)


def fold(session: Session, event: Event) -> Session:
    """Add an event to a session."""
    first, last, events, names = session
    at, changed = event
    return min(first, at), max(last, at), events + 1, names.union(changed)


def merge(one: Session, other: Session) -> Session:
    """Make one session of two."""
    return min(one[0], other[0]), max(one[1], other[1]), one[2] + other[2], one[3] | other[3]


def written(closed: list[tuple[str, tuple[int, Session]]]) -> list[Any]:
    """Return the records of closed sessions."""
    found = []
    for account, (_, (first, last, events, names)) in closed:
        about = {"events": events, "first_event_ms": first, "last_event_ms": last}
        value = orjson.dumps({"account_id": account, "metrics": sorted(names), "fold": about})
        found.append(KafkaSinkMessage(account.encode(), value))
    return found


servers = [os.environ["SESSIONS_BOOTSTRAP"]]
quick_fetches = {"fetch.queue.backoff.ms": "5", "fetch.wait.max.ms": "10"}
flow = Dataflow("sessions")
source = KafkaSource(servers, [os.environ["SESSIONS_SOURCE"]], tail=False, add_config=quick_fetches, batch_size=10_000)
events = op.flat_map_batch("read", op.input("source", flow, source), read)
# Time is that of the events of a key alone. By default, the watermark of a key also advances by the wall clock, so that events that
# are read late are dropped; and the closes of a backlog, all long past, would be tried again and again.
clock = windowing.EventClock(time_of, timedelta(), now_getter=lambda: STILL, to_system_utc=lambda _: None)
windower = windowing.SessionWindower(gap=timedelta(seconds=60))
sessions = windowing.fold_window("sessions", events, clock, windower, lambda: NONE, fold, merge, ordered=False)
records = op.flat_map_batch("records", sessions.down, written)
op.output("output", records, KafkaSink(servers, os.environ["SESSIONS_OUTPUT"], add_config={"linger.ms": "5"}))
