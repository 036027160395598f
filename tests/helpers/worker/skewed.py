"""A worker whose wall clock is wrong: ``STREAMS_APP_TEST_SKEW_FILE`` holds by how many ms, and may change while it runs.

Run as ``python -m tests.helpers.worker.skewed worker ...``. Only the clock of this process is shifted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

SKEW = Path(os.environ["STREAMS_APP_TEST_SKEW_FILE"])

_seconds, _nanoseconds = time.time, time.time_ns


def skew_ms() -> int:
    """Return the current error of the clock."""
    return int(SKEW.read_text() or 0)


if __name__ == "__main__":
    time.time = lambda: _seconds() + skew_ms() / 1000
    time.time_ns = lambda: _nanoseconds() + skew_ms() * 1_000_000
    from streams_app.cli import main

    main()
