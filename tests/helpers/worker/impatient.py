"""A worker whose watchdog looks often, says so in its log, and ends what makes no progress for two seconds.

Run as ``python -m tests.helpers.worker.impatient hearing worker ...``. A ``deaf`` worker does not process the records that it has
read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from streams_app.delivery.ownership import Ownership
from streams_app.worker import watchdog
from streams_app.worker.watchdog import Watchdog
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

CHECKED = "the watchdog has checked"
CHECKS = 30
"""Number of checks that takes three times as long as a stuck worker may run."""
LIMIT_SECONDS = 60


class ImpatientWorker(WorkerProcess):
    """A worker that ends soon if it is stuck."""

    how = "hearing"

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.helpers.worker.impatient", self.how, "worker", "--config", str(config), *arguments]

    async def is_checked(self) -> None:
        """Wait until the watchdog has checked long enough to end a stuck worker, or the worker has ended."""
        before = self.log().count(CHECKED)
        await wait_until(
            lambda: self.exit_code is not None or self.log().count(CHECKED) > before + CHECKS, LIMIT_SECONDS, "it is checked"
        )


class DeafWorker(ImpatientWorker):
    """A worker that does not process the records that it has read."""

    how = "deaf"


if __name__ == "__main__":
    from streams_app.cli import main

    check = Watchdog._check

    async def reported_check(self: Watchdog, *watched: Any) -> None:
        print(CHECKED, flush=True)
        await check(self, *watched)

    with (
        mock.patch.object(watchdog, "CHECK_EVERY_SECONDS", 0.2),
        mock.patch.object(Watchdog.__init__, "__defaults__", (2_000,)),
        mock.patch.object(Watchdog, "_check", reported_check),
    ):
        if sys.argv.pop(1) == "deaf":
            Ownership.deliver = lambda self, batch: None  # type: ignore[method-assign]
        main()
