"""The functions that `make bench ARGS="--subscribers"` has called: each notes its event in a ledger and does nothing else.

The environment names the topic and the ledger; the settings of a run enable one of the subscribers.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.ledger import Ledger
from streams_app import Catalogue, Event, Received, subscriber
from streams_app.subscribers.declaration.subscriber import Subscriber

TOPIC: Final = "BENCH_TOPIC"
LEDGER: Final = "BENCH_LEDGER"
NAP_SECONDS: Final = 0.01
IDLE: Final = 8


class Numbered(msgspec.Struct, frozen=True):
    """An event of 100 bytes.

    Attributes:
        number: Its index in the ledger.
        account: Record key.
        padding: Fills the event up to 100 bytes.
    """

    number: int
    account: str
    padding: str


ledger = Ledger(Path(os.environ[LEDGER])) if LEDGER in os.environ else None
numbered = Event(
    "bench.numbered", Numbered, description="An event to be counted.", keyed_by="account", topic=os.environ.get(TOPIC, "bench")
)


async def record_call(number: int) -> None:
    """Count an event: the function that is measured here and in the base."""
    assert ledger is not None  # the environment names one
    ledger.record(number)


@subscriber(numbered, idempotent="yes", description="Notes the event.")
async def again(event: Received[Numbered]) -> None:
    """At least once, in any order."""
    await record_call(event.data.number)


@subscriber(numbered, idempotent="yes", ordered="key", description="Notes the event.")
async def ordered(event: Received[Numbered]) -> None:
    """At least once, those of one account one after the other."""
    await record_call(event.data.number)


@subscriber(numbered, idempotent="yes", concurrency=100, description="Notes the event after a nap.")
async def napping(event: Received[Numbered]) -> None:
    """At least once, 10 ms each, 100 at a time."""
    await asyncio.sleep(NAP_SECONDS)
    await record_call(event.data.number)


@subscriber(numbered, idempotent="unknown", concurrency=64, description="Notes the event.")
async def once(event: Received[Numbered]) -> None:
    """Once while Redis keeps its data."""
    await record_call(event.data.number)


@subscriber(numbered, idempotent="no", concurrency=64, description="Notes the event.")
async def never_twice(event: Received[Numbered]) -> None:
    """At most once."""
    await record_call(event.data.number)


def _idle(number: int) -> Subscriber[Numbered, Any, Any]:
    async def idle(event: Received[Numbered]) -> None:
        await record_call(event.data.number)

    idle.__name__ = f"idle_{number}"
    return subscriber(numbered, idempotent="yes", description="Has nothing to do.")(idle)


catalogue = Catalogue(events=(numbered,), subscribers=(again, ordered, napping, once, never_twice, *map(_idle, range(IDLE))))
