"""How a worker process ends."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import NoReturn


def leave(exit_code: int) -> NoReturn:
    """Ends the process at once, and does not take the event loop and Python apart.

    Everything is closed by now. Both can crash while a thread is still about to end (uvloop #706, CPython #87135), and two workers
    that had lost nothing did end with a segmentation fault; that it was there is likely, not proven.
    """
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        print(end="", flush=True)  # what functions of the user's have printed
    os._exit(exit_code)
