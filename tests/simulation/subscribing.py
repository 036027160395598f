"""Subscribers in a simulation: the real processor, dispatcher and slots; functions that fail, hang and kill their process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.ownership import LAST_COMMIT_SECONDS
from streams_app.delivery.processor import Processors
from streams_app.events.declaration import Event
from streams_app.fold import Fold
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings
from streams_app.subscribers.declaration.received import Received, Reject
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.declaration.subscriber import Subscriber, subscriber
from streams_app.subscribers.execution.async_executor import AsyncExecutor
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.dispatcher import Dispatcher
from streams_app.subscribers.execution.subscriber_metrics import SubscriberMetrics
from streams_app.subscribers.running.agent import AHEAD, SubscriberProcessors
from streams_app.subscribers.running.processor import RELEASE_SECONDS
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.store import SubscriberScripts, SubscriberStore
from tests.helpers.virtual_loop import EPOCH_MS
from tests.simulation.calls import ATTEMPTS, NAME, CallLedger, fate_of
from tests.simulation.kafka import Sender
from tests.simulation.redis import Link, named

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

FOLD = Fold(name="f", source="s", group_key="id", changed="names", quiet_period="1s")
"""A fold, because every application has one."""
TIMEOUT_MS = 2_500
REMEMBER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Happened:
    """The argument of the function, from which it derives its behaviour."""

    offset: int


happened = Event("it.happened", Happened, description="Something.", keyed_by=None)


class Subscribing:
    """See :class:`tests.simulation.subject.Subject`; its function may be called twice for one event."""

    ordered: Any = None
    idempotent: Any = "yes"
    is_exact = False
    reclaim_seconds = RELEASE_SECONDS + TIMEOUT_MS / 1000
    release_seconds = reclaim_seconds + LAST_COMMIT_SECONDS
    ledger: CallLedger

    def __init__(self, world: World) -> None:
        """Create one subscriber."""
        self._world = world
        self._names = SubscriberKeys(world.app_id, NAME, *world.log.tp)
        self.keys = {NAME: [key.encode() for key in [*self._names.state, *self._names.ids(EPOCH_MS, REMEMBER_MS)]]}
        self.ledger = self._ledger()

    def _ledger(self) -> CallLedger:
        return CallLedger(self._world.log, self._world)

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Lower the limits of in-flight events, batches and commit metadata."""
        with (
            patch("streams_app.subscribers.execution.dispatcher.FEWEST_AHEAD", 1 + seed % 4),
            patch("streams_app.subscribers.running.processor.MAX_UNFINISHED", 5 + seed % 30),
        ):
            yield

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of one process; functions run on the event loop of the schedule."""
        return worker._context.run(self._processors, worker)

    def _processors(self, worker: Worker) -> Processors:
        scripts = SubscriberScripts(cast("Any", Link(worker, self._world.server)))
        for name, script in scripts.by_name.items():
            script.script.name = name
        declared = self._declared(worker)
        dispatcher = Dispatcher(
            NAME, declared.concurrency, declared.patience_ms, declared.retry, worker.trusted,
            lambda on_ended: AsyncExecutor(
                asyncio.get_running_loop(), declared.function, declared.concurrency, declared.timeout_ms, worker.trusted, on_ended
            ),
            ahead=AHEAD[declared.idempotent],
        )  # fmt: skip
        settings = Settings(app_id=self._world.app_id, folds=(FOLD,))
        rejecting = RejectingComponent("subscriber", NAME, self._world.app_id, "dead")
        context = SubscriberContext(
            declared, dispatcher, self._decode,
            lambda tp, token: SubscriberStore(
                scripts, self._names, token, remember_ms=0 if declared.idempotent == "yes" else REMEMBER_MS
            ),
            lambda tp: DeadLetterSender(rejecting, tp, Sender(worker), worker.trusted, lambda *_: None),
            worker.trusted, SubscriberMetrics(Metrics(settings), NAME, happened.key, worker.trusted),
        )  # fmt: skip
        return SubscriberProcessors(self._world.log.tp.topic, context)

    def _declared(self, worker: Worker) -> Subscriber[Any, Any, Any]:
        async def ship(event: Received[Happened]) -> None:
            await self._ship(worker, event)

        rule = Retries(attempts=ATTEMPTS, first="100ms", factor=2, longest="1s")
        return subscriber(
            happened, idempotent=self.idempotent, description="Under test.", concurrency=3,
            timeout=timedelta(milliseconds=TIMEOUT_MS), retry=rule, ordered=self.ordered, patience="0s",
        )(ship)  # fmt: skip

    @staticmethod
    def _decode(tp: TP, record: Any, attempt: int) -> DecodedRecord:
        event: Received[Happened] = Received(
            data=Happened(record.offset), id=f"e{record.offset}", raw_key=record.key, offset=record.offset, attempt=attempt
        )
        return DecodedRecord(event.id, event)

    async def _ship(self, worker: Worker, event: Received[Happened]) -> None:
        await worker.running()
        ledger, offset, claim = self.ledger, event.offset, worker.claim
        ledger.check_call(claim, offset)
        if self.ordered:
            ledger.check_order(offset, event.raw_key)
        ledger.calls.setdefault(offset, []).append(event.attempt)
        await worker.pause()
        match fate_of(offset):
            case "fails twice" if event.attempt <= 2:
                raise self._failure(offset)
            case "always fails":
                raise ValueError("no such article")
            case "is rejected":
                raise Reject("unknown address")
            case "hangs":
                await asyncio.Event().wait()
            case "kills":
                if offset // 47 % 2:
                    await asyncio.sleep(0.3)  # virtual time: some events kill their process at once, others a little later
                    await worker.running()
                self._world.count("killed")
                worker.kill()
                await worker.running()
        ledger.done.add(offset)
        if claim == worker.claim:
            ledger.done_under.add(claim, offset)

    def _failure(self, offset: int) -> Exception:
        """Return the exception of a function that will succeed later."""
        return ConnectionError("the carrier is away")

    def calls_of(self, offset: int) -> list[int]:
        """Return the number of attempts of an event if there are no faults except those of its function."""
        return {"fails twice": [1, 2, 3], "always fails": [1, 2, 3, 4], "hangs": [1, 2, 3, 4]}.get(fate_of(offset), [1])

    def token(self, args: Sequence[Any]) -> bytes:
        """Return the token in the only argument of a script, a map."""
        return cast("bytes", named(args)["token"])

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Do nothing before a script."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Return whether an event has begun, which is a good time for a snapshot."""
        return name == "begin"

    def is_whole(self) -> bool:
        """Whether every event is done, or a dead letter."""
        return all(map(self.ledger.is_finished, range(self._world.log.end)))

    def state(self, name: str) -> Any:
        """Return token, fence and unfinished events."""
        return [cast("dict[Any, Any]", self._world.server.client.hgetall(key)) for key in self.keys[name]]

    def check_end(self) -> None:
        """Check that every event was called or became a dead letter, and without faults was called no more often than it failed."""
        ledger, log = self.ledger, self._world.log
        events = [offset for offset, entry in enumerate(log.entries) if entry]
        if lost := [offset for offset in events if not ledger.is_finished(offset)]:
            self._world.report_fault("lost", f"{lost} are neither done nor dead letters")
        if self._world.mix.has_any or self._world.counts.get("killed"):
            return
        for offset in events:
            if (called := ledger.calls.get(offset, [])) != self.calls_of(offset):
                self._world.report_fault("repeated", f"{offset}, which {fate_of(offset)}, was called as {called}")
