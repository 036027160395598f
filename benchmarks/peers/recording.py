"""The function of all peers: record the event, at once or after a sleep. Needs only the standard library."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from benchmarks.ledger import Ledger

LEDGER = "PEERS_LEDGER"
NAP = "PEERS_NAP_SECONDS"
SERVER = "PEERS_SERVER"
NAME = "PEERS_NAME"

_ledger = Ledger(Path(os.environ[LEDGER])) if LEDGER in os.environ else None
_nap_seconds = float(os.environ.get(NAP, "0"))


def record_event_sync(number: int) -> None:
    """Record an event in a thread."""
    if _nap_seconds:
        time.sleep(_nap_seconds)
    if _ledger is not None:
        _ledger.record(number)


async def record_event(number: int) -> None:
    """Record an event on an event loop."""
    if _nap_seconds:
        await asyncio.sleep(_nap_seconds)
    if _ledger is not None:
        _ledger.record(number)
