"""A worker that takes 20 records at a time and does not look by itself whether it may go on: it has to be woken.

Run as ``python -m tests.patient worker ...``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

from streams_app import app
from streams_app.kafka.consumer import FoldingConsumer

RECORDS = 20
WAIT_SECONDS = 3_600.0


class PatientConsumer(FoldingConsumer):
    """Where the usual one waits for a second, it waits for an hour."""

    def getmany(self, timeout: float) -> AsyncIterator[tuple[Any, Any]]:
        return super().getmany(WAIT_SECONDS)

    async def sleep(self, n: float, **options: Any) -> None:
        """Faust sleeps for a second where every partition is paused."""
        await super().sleep(WAIT_SECONDS if n == 1 else n, **options)


if __name__ == "__main__":
    from streams_app.cli import main

    with mock.patch.multiple(app, FoldingConsumer=PatientConsumer, MAX_POLL_RECORDS=RECORDS):
        main()
