"""The subscribers of a chaos run: two of each delivery guarantee, with ``async`` and without, and an ordered one.

Each call is recorded at its begin and at its end, in a SQLite file. The environment names the file and the subscribers that run.
The number and the fate of an event determine the behaviour of the function, so that the judge knows what it must have done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from typing import Final

import msgspec

from streams_app import Catalogue, Event, Received, Reject, Retries, Retry, subscriber

CALLS: Final = "CHAOS_CALLS"
SUBSCRIBERS: Final = "CHAOS_SUBSCRIBERS"
TOPIC: Final = "orders"
TABLE: Final = """
CREATE TABLE IF NOT EXISTS calls (
    pid INTEGER, subscriber TEXT, event_id TEXT, number INTEGER, partition INTEGER, offset INTEGER, attempt INTEGER, phase TEXT
);
CREATE INDEX IF NOT EXISTS by_number ON calls (number);
"""


KILLS: Final = "kills"
KILLS_LATE: Final = "kills late"
HANGS: Final = "hangs"
BLOCKS: Final = "blocks"
HANGS_AT_FIRST: Final = "hangs at first"
SLOTS: Final = 8
"""Executor slots of a subscriber that runs in threads: this number of hanging functions blocks it."""

LATE_SECONDS: Final = 0.4
BLOCKED_SECONDS: Final = 2.5


class Order(msgspec.Struct, frozen=True):
    """An event that determines the behaviour of its function.

    Attributes:
        number: Determines the duration, and whether an attempt fails.
        customer: Record key.
        fate: Further behaviour in each attempt: kills its process, hangs forever, or blocks the event loop; "": none. With
            "hangs at first: NAME", only the first attempt of one subscriber hangs forever.
    """

    number: int
    customer: str
    fate: str = ""


class DownError(Exception):
    """The dependency of a function does not answer."""


def is_rejected(number: int) -> bool:
    """Whether every attempt fails, so that the event becomes a dead letter."""
    return number % 97 == 3


def is_retried(number: int) -> bool:
    """Whether the first attempt fails and reports that nothing was done."""
    return number % 23 == 5


def is_failing(number: int) -> bool:
    """Whether the first attempt fails without reporting what was done."""
    return number % 89 == 7


def nap_seconds(number: int) -> float:
    """Return the duration of the function; sometimes it is long enough for a fault to happen meanwhile."""
    return 1.0 if number % 61 == 11 else number * 7919 % 40 / 1000


def hangs_at_first(subscriber: str) -> str:
    """Return the fate of an event whose first attempt hangs in one subscriber only."""
    return f"{HANGS_AT_FIRST}: {subscriber}"


def fate_in(subscriber: str, fate: str) -> str:
    """Return the fate of an event in one of the subscribers."""
    kind, _, whose = fate.partition(": ")
    return kind if whose in ("", subscriber) else ""


order_placed = Event("order.placed", Order, description="Something was ordered.", keyed_by="customer", topic=TOPIC)

_connections = threading.local()


def opened(path: str) -> sqlite3.Connection:
    """Return the connection to the ledger, one for each thread."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")  # processes are killed here, not the machine
    return connection


def write(event: Received[Order], phase: str) -> None:
    """Add a row to the ledger."""
    if not hasattr(_connections, "ledger"):
        _connections.ledger = opened(os.environ[CALLS])
    row = (
        os.getpid(), event.subscriber, event.id, event.data.number, event.partition, event.offset, event.attempt, phase,
    )  # fmt: skip
    _connections.ledger.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def die() -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


async def misbehave(fate: str) -> None:
    """Behave like a badly written function, by the fate of the event."""
    if fate == KILLS_LATE:
        await asyncio.sleep(LATE_SECONDS)  # it kills its process a while after its begin
    if fate in (KILLS, KILLS_LATE):
        die()
    if fate == HANGS:
        await asyncio.Event().wait()
    if fate == BLOCKS:
        time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251  # the fault itself: it blocks the loop of all functions


def misbehave_in_thread(fate: str, attempt: int) -> None:
    """Do the same in a thread, where a hanging function cannot be stopped."""
    if fate == KILLS_LATE:
        time.sleep(LATE_SECONDS)
    if fate in (KILLS, KILLS_LATE):
        die()
    if fate == HANGS or (fate == HANGS_AT_FIRST and attempt == 1):
        hang_forever()
    if fate == BLOCKS:
        time.sleep(BLOCKED_SECONDS)


def hang_forever() -> None:
    """Hang forever; the stack of the thread in the log shows this name."""
    threading.Event().wait()


async def work(event: Received[Order]) -> None:
    """Run the function of each subscriber."""
    write(event, "begin")
    await misbehave(fate_in(event.subscriber, event.data.fate))
    await asyncio.sleep(nap_seconds(event.data.number))  # the work of a function
    finish(event)


def work_in_thread(event: Received[Order]) -> None:
    """Do the same without ``async``."""
    write(event, "begin")
    misbehave_in_thread(fate_in(event.subscriber, event.data.fate), event.attempt)
    time.sleep(nap_seconds(event.data.number))
    finish(event)


def finish(event: Received[Order]) -> None:
    """End a call as determined by the number of its event."""
    number = event.data.number
    if is_rejected(number):
        write(event, "reject")
        raise Reject("unknown customer")
    if is_retried(number) and event.attempt == 1:
        write(event, "retry")
        raise Retry
    if is_failing(number) and event.attempt == 1:
        write(event, "fail")
        raise DownError("no answer")
    write(event, "end")


QUICK: Final = Retries(attempts=5, first="200ms", longest="1s")


@subscriber(order_placed, idempotent="yes", description="At least once.", timeout="10s", retry=QUICK)
async def at_least_once(event: Received[Order]) -> None:
    """At least once."""
    await work(event)


@subscriber(order_placed, idempotent="yes", ordered="key", description="In the order of its key.", timeout="10s", retry=QUICK)
async def in_order(event: Received[Order]) -> None:
    """At least once, the events of a customer one after the other."""
    await work(event)


@subscriber(order_placed, idempotent="unknown", description="Deduplicated.", timeout="10s", retry=QUICK)
async def deduplicated(event: Received[Order]) -> None:
    """Deduplicated: once while Redis keeps its data."""
    await work(event)


@subscriber(order_placed, idempotent="no", description="At most once.", timeout="10s", retry=QUICK)
async def at_most_once(event: Received[Order]) -> None:
    """At most once."""
    await work(event)


@subscriber(order_placed, idempotent="yes", description="In threads.", concurrency=SLOTS, timeout="10s", retry=QUICK)
def thread_at_least_once(event: Received[Order]) -> None:
    """At least once."""
    work_in_thread(event)


@subscriber(order_placed, idempotent="unknown", description="In threads.", concurrency=SLOTS, timeout="10s", retry=QUICK)
def thread_deduplicated(event: Received[Order]) -> None:
    """Deduplicated: once while Redis keeps its data."""
    work_in_thread(event)


@subscriber(order_placed, idempotent="no", description="In threads.", concurrency=SLOTS, timeout="10s", retry=QUICK)
def thread_at_most_once(event: Received[Order]) -> None:
    """At most once."""
    work_in_thread(event)


ALL: Final = (
    at_least_once, in_order, deduplicated, at_most_once, thread_at_least_once, thread_deduplicated, thread_at_most_once
)  # fmt: skip
chosen = os.environ.get(SUBSCRIBERS, ",".join(one.name for one in ALL)).split(",")
catalogue = Catalogue(events=(order_placed,), subscribers=tuple(one for one in ALL if one.name in chosen))
