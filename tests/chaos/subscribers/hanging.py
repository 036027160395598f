"""Functions that hang in every executor slot of a subscriber that runs in threads: their outcome, and other subscribers."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streams_app.errors import TryAgainError
from streams_app.subscribers.declaration.subscriber import Idempotent
from streams_app.subscribers.execution.executor import HUNG_MS
from tests.chaos.stage import Stage
from tests.chaos.subscribers import catalogue
from tests.chaos.subscribers.judge import Position
from tests.chaos.traces import TRACE_SECONDS, must
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

FILLED_SECONDS: Final = 20.0
TRIES: Final = 3
"""Number of attempts, because a rebalance may revoke the partition while the slots are filled."""


@dataclass(frozen=True, slots=True)
class Hanging:
    """Lets a subscriber hang, and checks the consequences.

    Attributes:
        stage: Stage with the workers.
        ledger: File with the calls.
        publish: Publishes an event with a fate into a partition, and returns its number.
        dead_letters: Subscriber → position of an event → reasons of its dead letters.
    """

    stage: Stage
    ledger: sqlite3.Connection
    publish: Callable[[str, int], Awaitable[int]]
    dead_letters: Callable[[str], Awaitable[Mapping[Position, Sequence[str]]]]

    async def fill_slots(self, name: str, idempotent: Idempotent, others: Collection[str], partition: int) -> None:
        """Let a function hang in every slot of a subscriber in one worker, and wait for all consequences.

        Raises:
            AssertionError: Other subscribers did not continue; an overdue call did not become a dead letter; the worker did not end
                with 75 and the stacks in its log; or the events that waited for a slot were not processed afterwards.
        """
        for _ in range(TRIES):
            if await self._slots_were_filled(name, idempotent, others, partition):
                return
        raise AssertionError(
            f"in each attempt, an event that kills its process killed the worker in which every slot of {name} hung"
        )

    async def _slots_were_filled(self, name: str, idempotent: Idempotent, others: Collection[str], partition: int) -> bool:
        """Perform :meth:`fill_slots`; return False if an earlier event that kills its process has killed the worker."""
        worker, hung = await self._filled(name, partition)
        witness = await self._witness(partition)
        await wait_until(
            lambda: self._done(witness) >= set(others),
            TRACE_SECONDS,
            f"other subscribers continue while every slot of {name} hangs",
        )
        if worker.exit_code == -signal.SIGKILL:
            return False
        must(worker.exit_code is None, f"the worker continues for a minute while every slot of {name} hangs")
        if idempotent != "yes":

            async def are_dead_letters() -> bool:
                found = await self.dead_letters(name)
                return all("timed-out" in found.get(position, ()) for position in hung)

            await wait_until(are_dead_letters, TRACE_SECONDS, f"{name} has dead letters of the overdue calls")
        code = await worker.wait_exit(HUNG_MS / 1000 + TRACE_SECONDS)
        self.stage.record_healed()
        if code == -signal.SIGKILL:
            return False
        must(code == TryAgainError.exit_code, f"exit code 75 of a worker in which every slot of {name} hangs, not {code}")
        reported = [
            line for line in worker.log().splitlines() if f"all slots of a subscriber hang, ending subscriber={name}" in line
        ]
        shown = [line for line in reported if f"in {catalogue.hang_forever.__name__} " in line]
        must(len(shown) == 1, f"one line of the log that shows where all slots of {name} hang, not {reported}")
        await wait_until(lambda: name in self._done(witness), TRACE_SECONDS, f"{name} continues in another process")
        return True

    async def _filled(self, name: str, partition: int) -> tuple[WorkerProcess, list[Position]]:
        """Return a worker in which every slot of a subscriber hangs, and the hanging events."""
        numbers: set[int] = set()

        def filled() -> list[tuple[WorkerProcess, list[Position]]]:
            begun = (
                "SELECT DISTINCT pid, number, partition, offset FROM calls WHERE number = ? AND subscriber = ? AND phase = 'begin'"
            )
            rows = [row for number in numbers for row in self._rows(begun, number, name)]
            hanging = Counter(pid for pid, *_ in rows)
            full = [one for one in self.stage.workers if hanging[one.pid] >= catalogue.SLOTS and one.exit_code is None]
            return [(one, [(row[2], row[3]) for row in rows if row[0] == one.pid]) for one in full]

        for left in reversed(range(TRIES)):
            numbers |= {await self.publish(catalogue.hangs_at_first(name), partition) for _ in range(catalogue.SLOTS)}
            try:
                return (await wait_until(filled, FILLED_SECONDS, f"every slot of {name} hangs in one process"))[0]
            except AssertionError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    async def _witness(self, partition: int) -> int:
        """Publish an event after the hanging ones that every subscriber can process."""
        while True:
            number = await self.publish("", partition)
            if not (catalogue.is_rejected(number) or catalogue.is_failing(number)):
                return number

    def _done(self, number: int) -> set[str]:
        """Return the subscribers that have processed an event."""
        return {name for (name,) in self._rows("SELECT subscriber FROM calls WHERE number = ? AND phase = 'end'", number)}

    def _rows(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        # Called often, on the event loop that also runs the proxies of a worker: uses the index, and one connection.
        return self.ledger.execute(query, values).fetchall()
