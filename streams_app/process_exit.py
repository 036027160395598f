"""Ends a process within a time limit after SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import NoReturn

from streams_app.errors import TryAgainError

logger = logging.getLogger(__name__)

STOP_SECONDS = 18.0
"""Time after SIGTERM at which the process exits even if a step hangs; unfinished work stays in Redis and Kafka."""

REST_SECONDS = 3.0
"""Rest of the time limit after ``worker.grace`` of 15 s, for the last commits and for closing connections."""


def exit_now(exit_code: int) -> NoReturn:
    """Exit the process at once, without closing the event loop and finalizing Python.

    Call it after all resources are closed. The two skipped steps can crash while a thread is still ending (uvloop #706, CPython
    #87135). This is the likely, but unproven cause of segmentation faults at the exit of two workers, which had lost no data.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # the reader of stdout has exited
        print(end="", flush=True)  # flush the output of the user's functions
    os._exit(exit_code)


def stop_seconds(grace_seconds: float) -> float:
    """Return the time limit of the shutdown in seconds; a grace period beyond the default extends it."""
    return max(STOP_SECONDS, grace_seconds + REST_SECONDS)


def exit_after(grace_seconds: float) -> None:
    """Exit the process after :func:`stop_seconds` if it is still running."""
    seconds = stop_seconds(grace_seconds)

    def end() -> None:
        logger.error("not stopped within %s seconds, ending now; nothing is lost", seconds)
        logging.shutdown()
        os._exit(TryAgainError.exit_code)  # not exit_now(): stdout itself may hang

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
