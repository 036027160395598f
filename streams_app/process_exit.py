"""Ends a process within a time limit after SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import NoReturn

from streams_app.errors import TryAgainError

logger = logging.getLogger(__name__)

EXIT_SECONDS = 18.0
"""Time limit of the shutdown after SIGTERM, in seconds. The process then exits even if a step hangs.

Unfinished work stays in Redis and Kafka. The limit is longer if ``worker.grace`` exceeds its default.
"""

REST_SECONDS = 3.0
"""Time in seconds that the shutdown may take beyond ``worker.grace``, for the last commits and for closing connections."""


def exit_now(exit_code: int) -> NoReturn:
    """Flush the logs and stdout, then exit the process without closing the event loop and finalizing Python.

    Call it after all resources are closed. The two skipped steps can crash while a thread is still ending (uvloop #706, CPython
    #87135). This is the likely but unproven cause of segmentation faults at the exit of two workers; no data was lost.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # the reader of stdout has exited
        print(end="", flush=True)  # flush the output of the user's functions
    os._exit(exit_code)


def exit_seconds(grace_seconds: float) -> float:
    """Return the time limit of the shutdown in seconds; it is longer if ``worker.grace`` exceeds its default."""
    return max(EXIT_SECONDS, grace_seconds + REST_SECONDS)


def exit_after(grace_seconds: float) -> None:
    """Start a timer. If the process still runs after :func:`exit_seconds`, the timer ends it with exit code 75."""
    seconds = exit_seconds(grace_seconds)

    def end() -> None:
        logger.error("not stopped within %s seconds, ending now; nothing is lost", seconds)
        logging.shutdown()
        os._exit(TryAgainError.exit_code)  # not exit_now(): stdout itself may hang

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
