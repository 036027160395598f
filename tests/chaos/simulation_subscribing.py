"""Subscribers in a simulation: the real processor, dispatcher and slots; functions that fail, hang and kill their process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed
from streams_app.delivery.dead_letters import DeadLetters, Refuser
from streams_app.delivery.outgoing import Outgoing
from streams_app.delivery.ownership import LAST_COMMIT_SECONDS
from streams_app.delivery.processor import Processors
from streams_app.events.declaration import Event
from streams_app.fold import Fold
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from streams_app.subscribers.agent import AHEAD, SubscriberProcessors
from streams_app.subscribers.around import Around, Decoded
from streams_app.subscribers.coroutines import AsyncRunner
from streams_app.subscribers.declaration import Subscriber, subscriber
from streams_app.subscribers.dispatcher import Dispatcher
from streams_app.subscribers.figures import Figures
from streams_app.subscribers.keys import SubscriberKeys
from streams_app.subscribers.note import decoded
from streams_app.subscribers.processor import LEAVE_SECONDS
from streams_app.subscribers.received import Received, Reject
from streams_app.subscribers.retries import Retries
from streams_app.subscribers.store import ScriptSet, SubscriberStore
from streams_app.subscribers.window import NOTHING
from tests.chaos.simulation_kafka import Log, Sender
from tests.chaos.simulation_ledger import marks_in
from tests.chaos.simulation_redis import Link, named
from tests.virtual_loop import EPOCH_MS

if TYPE_CHECKING:
    from tests.chaos.simulation import World
    from tests.chaos.simulation_worker import Worker

NAME = "ship"
FOLD = Fold(name="f", source="s", group_key="id", changed="names", quiet_period="1s")
"""Every application has one."""
ATTEMPTS = 4
TIMEOUT_MS = 2_500
REMEMBER_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Happened:
    """What a function is called with: enough to know what it is to do."""

    offset: int


happened = Event("it.happened", Happened, description="Something.", keyed_by=None)


def fate_of(offset: int) -> str:
    """What becomes of an event, the same in each schedule."""
    fates = {3: "fails twice", 7: "always fails", 11: "is rejected", 13: "hangs", 17: "kills", 26: "fails twice"}
    return fates.get(offset % 47, "is done")


class CallLedger:
    """What the outside world sees of a subscriber.

    Attributes:
        done: Offsets whose function has returned.
        letters: Offset → reason of its dead letter.
        calls: Offset → attempts, as they say themselves.
        records: Events that are done or have a letter.
        highest: Name → highest mark ever committed.
        attempts: After so many failures an event becomes a letter.
        killer: Reason of the letter of what kills its process.
        hanging: Reasons of the letter of what never ends.
    """

    attempts = ATTEMPTS
    killer = "crashed"
    hanging: AbstractSet[str] = frozenset({"timed-out"})

    def __init__(self, log: Log, world: World) -> None:
        self._log = log
        self._world = world
        self.done: set[int] = set()
        self.letters: dict[int, str] = {}
        self.calls: dict[int, list[int]] = {}
        self.running: dict[str, set[int]] = {}
        self.highest: dict[str, int] = {}
        self.last_by_key: dict[tuple[str, bytes], int] = {}

    @property
    def records(self) -> int:
        """Events that are finished."""
        return len(self.done | self.letters.keys())

    def is_finished(self, offset: int) -> bool:
        """Whether nobody has to do anything about an offset."""
        return self._log.entries[offset] is None or offset in self.done or offset in self.letters

    def on_record(self, record: Outgoing) -> None:
        """The broker has appended a dead letter, acknowledged or not."""
        headers = {name: value.decode(errors="replace") for name, value in record.headers}
        offset, reason, fate = int(headers["source-offset"]), headers["reason"], fate_of(int(headers["source-offset"]))
        expected = {"always fails": {"failed"}, "is rejected": {"rejected"}, "hangs": self.hanging, "kills": {self.killer}}
        if reason not in expected.get(fate, set()):
            if not self.is_excused(reason):
                self._world.tell("letter", f"{offset}, which {fate}, became a letter for {reason}")
        # An attempt during which its process died is one, and the event runs again all the same.
        most = self.attempts if self._world.mix.is_calm and not self._world.counts.get("killed") else 100
        if reason in ("failed", "timed-out") and not self.attempts <= int(headers["attempts"]) <= most:
            self._world.tell("letter", f"{offset} became a letter after {headers['attempts']} attempts")
        self.letters[offset] = reason

    def is_excused(self, reason: str) -> bool:
        """Whether any event may have become a letter for this reason."""
        # Whoever happens to run alone when its process is killed by another hand, or taken for dead, looks like the killer; in a
        # frozen one all are late.
        faults = {"crashed": {"crash", "zombie", "freeze"}, "timed-out": {"zombie", "freeze"}}
        return bool(faults.get(reason, set()) & self._world.counts.keys())

    def on_loss(self, name: str) -> None:
        """Attempts count anew; nothing else may depend on it."""

    def on_commit(self, before: Committed | None, mark: Committed, claimed_at: int) -> None:
        """The coordinator has taken a commit."""
        offset = marks_in(mark)[NAME]
        # One that comes late is told from a newer one by nobody; what begins goes by those that were answered.
        if before is not None and offset < before.offset and "overtaken" not in self._world.mix.faults:
            self._world.tell("back", f"went back from {before.offset} to {offset}")
        if open_below := [at for at in range(offset) if not self.is_finished(at)]:
            self._world.tell("commit", f"committed up to {offset}, {open_below} are not finished")
        noted = decoded(note_in(mark), offset, self._log.end)
        for run in (NOTHING if noted is None else noted.above).finished:
            if unfinished := [at for at in range(*run) if not self.is_finished(at)]:
                self._world.tell("note", f"the note calls {unfinished} finished")
        self.highest[NAME] = max(offset, self.highest.get(NAME, 0))


def note_in(mark: Committed) -> str:
    """The note of the only processor."""
    from streams_app.delivery.marks import noted_in

    found = noted_in(mark) or {}
    return found[NAME].note if NAME in found else ""


class Subscribing:
    """See :class:`tests.chaos.simulation_subject.Subject`; its function may be called twice for one event."""

    ordered: Any = None
    idempotent: Any = "yes"
    is_exact = False
    again_seconds = LEAVE_SECONDS + TIMEOUT_MS / 1000
    release_seconds = again_seconds + LAST_COMMIT_SECONDS
    ledger: CallLedger

    def __init__(self, world: World) -> None:
        """One subscriber."""
        self._world = world
        self._names = SubscriberKeys(world.app_id, NAME, *world.log.tp)
        self.keys = {NAME: [key.encode() for key in [*self._names.marks, *self._names.ids(EPOCH_MS, REMEMBER_MS)]]}
        self.ledger = self._ledger()

    def _ledger(self) -> CallLedger:
        return CallLedger(self._world.log, self._world)

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Few calls ahead, small windows and notes."""
        with (
            patch("streams_app.subscribers.dispatcher.FEWEST_AHEAD", 1 + seed % 4),
            patch("streams_app.subscribers.processor.MOST_UNFINISHED", 5 + seed % 30),
        ):
            yield

    def processors(self, worker: Worker) -> Processors:
        """As one process makes them; functions run on the loop of the schedule."""
        return worker._context.run(self._processors, worker)

    def _processors(self, worker: Worker) -> Processors:
        scripts = ScriptSet(cast("Any", Link(worker, self._world.server)))
        for name, script in scripts.by_name.items():
            script.script.name = name
        declared = self._declared(worker)
        dispatcher = Dispatcher(
            NAME, declared.concurrency, declared.patience_ms, declared.retry, worker.trusted,
            lambda on_ended: AsyncRunner(
                asyncio.get_running_loop(), declared.function, declared.concurrency, declared.timeout_ms, worker.trusted, on_ended
            ),
            ahead=AHEAD[declared.idempotent],
        )  # fmt: skip
        settings = Settings(app_id=self._world.app_id, folds=(FOLD,))
        refuser = Refuser("subscriber", NAME, self._world.app_id, "dead")
        around = Around(
            declared, dispatcher, self._decode,
            lambda tp, token: SubscriberStore(
                scripts, self._names, token, remember_ms=0 if declared.idempotent == "yes" else REMEMBER_MS
            ),
            lambda tp: DeadLetters(refuser, tp, Sender(worker), worker.trusted, lambda *_: None),
            worker.trusted, Figures(Metrics(settings), NAME, happened.key, worker.trusted),
        )  # fmt: skip
        return SubscriberProcessors(self._world.log.tp.topic, around)

    def _declared(self, worker: Worker) -> Subscriber[Any, Any, Any]:
        async def ship(event: Received[Happened]) -> None:
            await self._ship(worker, event)

        rule = Retries(attempts=ATTEMPTS, first="100ms", factor=2, longest="1s")
        return subscriber(
            happened, idempotent=self.idempotent, description="Under test.", concurrency=3,
            timeout=timedelta(milliseconds=TIMEOUT_MS), retry=rule, ordered=self.ordered, patience="0s",
        )(ship)  # fmt: skip

    @staticmethod
    def _decode(tp: TP, record: Any, attempt: int) -> Decoded:
        event: Received[Happened] = Received(
            data=Happened(record.offset), id=f"e{record.offset}", raw_key=record.key, offset=record.offset, attempt=attempt
        )
        return Decoded(event.id, event)

    async def _ship(self, worker: Worker, event: Received[Happened]) -> None:
        await worker.running()
        ledger, offset = self.ledger, event.offset
        ledger.calls.setdefault(offset, []).append(event.attempt)
        await worker.pause()
        match fate_of(offset):
            case "fails twice" if event.attempt <= 2:
                raise self._trouble(offset)
            case "always fails":
                raise ValueError("no such article")
            case "is rejected":
                raise Reject("nobody lives there")
            case "hangs":
                await asyncio.Event().wait()
            case "kills":
                if offset // 47 % 2:
                    await asyncio.sleep(0.3)  # virtual time: some kill at once, others take a moment
                    await worker.running()
                self._world.count("killed")
                worker.kill()
                await worker.running()
        ledger.done.add(offset)

    def _trouble(self, offset: int) -> Exception:
        """What a function raises that will succeed later."""
        return ConnectionError("the carrier is away")

    def calls_of(self, offset: int) -> list[int]:
        """Attempts of an event where nothing goes wrong but its function."""
        return {"fails twice": [1, 2, 3], "always fails": [1, 2, 3, 4], "hangs": [1, 2, 3, 4]}.get(fate_of(offset), [1])

    def token(self, args: Sequence[Any]) -> bytes:
        """Scripts have one argument, a map."""
        return cast("bytes", named(args)["token"])

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Nothing is to be known of it."""

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Moments with something begun are worth coming back to."""
        return name == "begin"

    def is_whole(self) -> bool:
        """Every event is done, or a dead letter."""
        return all(map(self.ledger.is_finished, range(self._world.log.end)))

    def state(self, name: str) -> Any:
        """Marks, and what is open."""
        return [cast("dict[Any, Any]", self._world.server.client.hgetall(key)) for key in self.keys[name]]

    def check_end(self) -> None:
        """Every event was called or became a letter, and without faults nothing was called more often than it failed."""
        ledger, log = self.ledger, self._world.log
        events = [offset for offset, entry in enumerate(log.entries) if entry]
        if lost := [offset for offset in events if not ledger.is_finished(offset)]:
            self._world.tell("lost", f"{lost} are neither done nor letters")
        if self._world.mix.has_any or self._world.counts.get("killed"):
            return
        for offset in events:
            if (called := ledger.calls.get(offset, [])) != self.calls_of(offset):
                self._world.tell("again", f"{offset}, which {fate_of(offset)}, was called as {called}")
