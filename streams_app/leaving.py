"""How a worker process ends."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import NoReturn

from streams_app.errors import TryAgainError

logger = logging.getLogger(__name__)

STOP_SECONDS = 18.0
"""The process ends itself so long after SIGTERM, whatever hangs: what is not finished is in Redis and Kafka."""


def leave(exit_code: int) -> NoReturn:
    """Ends the process at once, and does not take the event loop and Python apart.

    Everything is closed by now. Both can crash while a thread is still about to end (uvloop #706, CPython #87135), and two workers
    that had lost nothing did end with a segmentation fault; that it was there is likely, not proven.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        print(end="", flush=True)  # what functions of the user's have printed
    os._exit(exit_code)


def leave_in_time() -> None:
    """Ends the process after :data:`STOP_SECONDS`, should it be there still."""

    def end() -> None:
        logger.error("not stopped within %s seconds, ending now; nothing is lost", STOP_SECONDS)
        logging.shutdown()
        os._exit(TryAgainError.exit_code)  # not leave(): perhaps it is stdout that hangs

    timer = threading.Timer(STOP_SECONDS, end)
    timer.daemon = True
    timer.start()
