"""How a process of this project is set up, and how it ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
from typing import NoReturn

from streams_app.errors import TryAgainError

logger = logging.getLogger(__name__)

STOP_SECONDS = 18.0
"""The process ends itself so long after SIGTERM, whatever hangs: what is not finished is in Redis and Kafka."""

REST_SECONDS = 3.0
"""What of it is left when functions have taken ``worker.grace``, which is 15 s: for last marks and commits, and what is closed."""


def leave(exit_code: int) -> NoReturn:
    """Ends the process at once, and does not take the event loop and Python apart.

    Everything is closed by now. Both can crash while a thread is still about to end (uvloop #706, CPython #87135), and two workers
    that had lost nothing did end with a segmentation fault; that it was there is likely, not proven.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        print(end="", flush=True)  # what functions of the user's have printed
    os._exit(exit_code)


def stop_seconds(grace_seconds: float) -> float:
    """How long the end of a process may take: a grace that is longer than the ordinary one makes it as much longer."""
    return max(STOP_SECONDS, grace_seconds + REST_SECONDS)


def leave_in_time(grace_seconds: float) -> None:
    """Ends the process after :func:`stop_seconds`, should it be there still."""
    seconds = stop_seconds(grace_seconds)

    def end() -> None:
        logger.error("not stopped within %s seconds, ending now; nothing is lost", seconds)
        logging.shutdown()
        os._exit(TryAgainError.exit_code)  # not leave(): perhaps it is stdout that hangs

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def search_cycles_rarely() -> None:
    """Makes the search for reference cycles rare.

    Batches are thousands of short-lived tuples and dictionaries without cycles: with the usual thresholds a third of the time would
    go into the search. What exists so far is never searched.
    """
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
