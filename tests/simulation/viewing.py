"""Live views in a simulation: processors in workers, hubs and browsers, and the states that they must have and show."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.processor import Processor, Processors
from streams_app.health.outage_reporter import OutageReporter
from streams_app.live.agents.processor import ViewContext, ViewProcessors
from streams_app.live.store.keys import presence_keys, view_keys
from streams_app.live.store.view_store import LiveScripts
from streams_app.settings import LiveView, Settings
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.hubs import Audience
from tests.simulation.kafka import Sender
from tests.simulation.redis import Link, named
from tests.simulation.view_model import ViewLedger, ViewModel
from tests.simulation.world import FAULTY_SECONDS

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

EXPIRIES = ("4s", "15s", "40m")
"""Shorter than a schedule, and longer."""

REST_SECONDS = FAULTY_SECONDS + 14.0
"""Time within which items of the view with the middle expiry leave pages that keep other items."""

EVENTS_A_PART = (2, 5, 12)


class _Views(Processors):
    """The processors of all views of one process; in the product, each view has a separate consumer group."""

    topics: Collection[str] = ()

    def __init__(self, worker: Worker, views: Sequence[LiveView]) -> None:
        self.topics = [worker.world.log.tp.topic]
        self._made = [ViewProcessors(_context(worker, view)) for view in views]

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, Processor]:
        found: dict[str, Processor] = {}
        for made in self._made:
            found |= made.of(tp, committed)
        return found


def _context(worker: Worker, view: LiveView) -> ViewContext:
    world = worker.world
    rejecting = RejectingComponent("view", view.name, world.app_id, view.dead_letters)
    link: Any = Link(worker, world.server)
    scripts = LiveScripts(link)
    for name, script in scripts.by_name.items():
        script.script.name = name
    return ViewContext(
        world.app_id, view, 1_000_000, scripts,
        lambda tp: DeadLetterSender(rejecting, tp, Sender(worker), worker.trusted, lambda *_: None),
        worker.trusted, OutageReporter(f"live view {view.name}"),
    )  # fmt: skip


class Viewing:
    """See :class:`tests.simulation.subject.Subject`."""

    is_exact = False
    release_seconds = 4.0
    reclaim_seconds = 0.0

    def __init__(self, world: World) -> None:
        """Create a list and a count of the same log, and the browsers that have their pages open."""
        self._world = world
        world.future_share = 0.0  # the meaning of a future timestamp depends on when it is read
        common = {"source": world.log.tp.topic, "page": "a", "item": "b", "expiry": world.rng.choice(EXPIRIES), "public": True}
        # The content of a page that has dropped items depends on the batches, if others are removed.
        limit: dict[str, Any] = world.rng.choice([{"remove": {"m.w": [3]}}, {"max_items": 2}])
        self.settings = Settings.model_validate({
            "app_id": world.app_id,
            "live": [
                {"name": "news", "kind": "list", "payload": ["m"], "remove": {"m.v": [0, 1]}, **common},
                {"name": "supporters", "kind": "count", "only": {"m.u": [0, 1, 2]}, **limit, **common},
                # With the longer expiry, a lost tab returns only if its hub detects the loss.
                {"name": "visitors", "kind": "presence", "expiry": "1m" if world.mix.has_true_hubs else "6s", "public": True},
            ],
        })  # fmt: skip
        of_topics = self.settings.live_of_topics
        all_keys = {view.name: view_keys(world.app_id, view.name, *world.log.tp) for view in of_topics}
        self.models = {view.name: ViewModel(world, view, all_keys[view.name]) for view in of_topics}
        self.keys = {
            name: [
                key.encode()
                for key in (
                    keys.meta, keys.pages, keys.due, keys.dropped,
                    *(f"{prefix}{page}" for prefix in (keys.items_prefix, keys.data_prefix) for page in "pqrs"),
                )
            ]
            for name, keys in all_keys.items()
        }  # fmt: skip
        self._here = presence_keys(world.app_id, "visitors")
        self._name_of = {keys.meta: name for name, keys in all_keys.items()}
        self.ledger = ViewLedger(self.models)
        self._audience: Audience | None = None

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Limit a part to a few records; the topic has one partition, because hubs read all its partitions."""
        with (
            patch("streams_app.live.core.operations.MAX_EVENTS", EVENTS_A_PART[seed % len(EVENTS_A_PART)]),
            patch("tests.simulation.kafka.PARTITIONS", 1),
        ):
            yield
        self._world.server.client.delete(self._here.marker, *(self._here.here_prefix + page for page in "pqrs"))

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of a process; hubs and browsers start with the first one."""
        if self._audience is None:
            if "redefined" in self._world.mix.faults:
                self._leave_other_states()
            self._audience = Audience(self._world, self.settings, self.models)
        return _Views(worker, self.settings.live_of_topics)

    def _leave_other_states(self) -> None:
        """Create states of workers that declare the views differently and have read everything."""
        client = self._world.server.client
        for name, model in self.models.items():
            keys = view_keys(self._world.app_id, name, *self._world.log.tp)
            now_ms = LoopClock().now_ms()
            client.hset(
                keys.meta,
                mapping={
                    "token": "former", "fence": self._world.log.end - 1, "seq": 1, "clock": now_ms, "definition": "former",
                    "topic_id": "", "partitions": 1, "reading": "", "whole_ms": 0,
                },
            )  # fmt: skip
            client.hset(keys.pages, "p", "1")
            client.zadd(keys.due, {"p": now_ms})
            client.zadd(keys.dropped, {"p": now_ms})
            client.zadd(f"{keys.items_prefix}p", {"former": now_ms})
            if model.view.kind == "list":
                client.hset(f"{keys.data_prefix}p", "former", "{}")

    def token(self, args: Sequence[Any]) -> bytes:
        """Return the token in the only argument of a script, a map."""
        return cast("bytes", named(args)["token"])

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Compare the state before a script, because Redis may have lost or changed something."""
        self.models[self._name_of[keys[0]]].record_state()

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Compare the state after a script with the model."""
        if reply[0] in (b"ok", b"new", b"already"):
            self.models[self._name_of[keys[0]]].on_script(name, named(args), reply)
            self.ledger.records += name == "apply"
        return name == "apply"

    def is_whole(self) -> bool:
        """Whether the state is complete, and all browsers show it."""
        differing = self._differing()
        return all(model.is_whole() for model in self.models.values()) and not differing and self._world.now() > REST_SECONDS

    def _differing(self) -> str:
        return self._audience.differing() if self._audience else "there are no hubs"

    def state(self, name: str) -> Any:
        """Return token and fence, and a wrong state that a browser shows."""
        return self.models[name].meta(), self._differing()

    def check_end(self) -> None:
        """Check the results after the faults and the drain."""
        for model in self.models.values():
            model.check_end()
