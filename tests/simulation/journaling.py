"""Journals in a simulation: processors and keepers in workers, readers, unusual keys, and short days."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import Processor, Processors
from streams_app.health.outage_reporter import OutageReporter
from streams_app.journal.agents.keeper import KeeperContext
from streams_app.journal.agents.processor import JournalContext, JournalProcessors
from streams_app.journal.agents.throttle import FilingThrottle
from streams_app.journal.core.entry import UNKEYED
from streams_app.journal.store.journal_store import JournalScripts
from streams_app.journal.store.keys import journal_keys
from streams_app.settings import JournalSettings, Limits
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.faults import FUTURE_MS, HISTORY_MS
from tests.simulation.journal_model import DAY_MS, JournalLedger, JournalModel, day_of
from tests.simulation.journal_readers import JournalReaders
from tests.simulation.kafka import Record
from tests.simulation.redis import Link, named
from tests.simulation.world import FAULTY_SECONDS

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

REST_SECONDS = FAULTY_SECONDS + 4.0
"""Time until the last day has ended."""

KEEPS = {"by-field": (timedelta(seconds=7), timedelta(seconds=11)), "by-key": (timedelta(seconds=7), timedelta(hours=1))}
BYTES = (60_000, 10**9)
KEYS = ["p", "p\0", "p\0\x7f", "q", "\0", 1, "1", 2.5, True]
RAW_KEYS = [b"p", b"p\0", b"p\0\xff", b"\xff", b"{", b"\0", b""]
SIZES = (0, 0, 10, 200, 3_000)
DAYS_OF_HISTORY = 12

LIMITS = {
    "core.chunk.MAX_CHUNK_EVENTS": (2, 5, 9),
    "core.block.COMPRESSED_FROM": (200, 1_000),
    "core.repack.BLOCK_BYTES": (200, 2_000),
    "agents.keeper.READ_BYTES": (300, 20_000),
    "agents.keeper.REPLY_BYTES": (200, 1_000_000),
    "agents.keeper.STAGED_BYTES": (300, 20_000),
    "agents.keeper.MAX_LAG": (3, 1_000),
    "agents.keeper.IDLE_SECONDS": (0.1, 0.5),
}
"""Limit of the product → its values in schedules."""


class _Journals(Processors):
    """The processors of all journals of one process; in the product, each journal has a separate consumer group."""

    topics: Collection[str] = ()

    def __init__(self, worker: Worker, journals: Sequence[JournalSettings]) -> None:
        self.topics = [worker.world.log.tp.topic]
        self._made = [JournalProcessors(_context(worker, journal)) for journal in journals]

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, Processor]:
        found: dict[str, Processor] = {}
        for made in self._made:
            found |= made.of(tp, committed)
        return found


def _context(worker: Worker, journal: JournalSettings) -> JournalContext:
    link: Any = Link(worker, worker.world.server)
    scripts = JournalScripts(link)
    for name, script in scripts.by_name.items():
        script.script.name = name
    return JournalContext(
        worker.world.app_id, journal, Limits(), link, scripts, worker.trusted, KeeperContext(),
        FilingThrottle(lambda: 0, worker.trusted), OutageReporter(f"journal {journal.name}"),
    )  # fmt: skip


class Journaling:
    """See :class:`tests.simulation.subject.Subject`."""

    is_exact = False
    release_seconds = 4.0
    reclaim_seconds = 0.0

    def __init__(self, world: World) -> None:
        """Create two journals of the same log: one by a field, one by the record key."""
        self._world = world
        self.journals = [
            _shorter(
                JournalSettings(name=name, source=world.log.tp.topic, key=key),
                keep=world.rng.choice(KEEPS[name]),
                max_bytes=world.rng.choice(BYTES),
                compress_after=timedelta(seconds=world.rng.choice([0, 0, 1])),
                compress_rate=world.rng.choice([5_000, 10**9]),
            )
            for name, key in (("by-field", "a"), ("by-key", "@key"))
        ]
        self.models = {
            journal.name: JournalModel(world, journal, journal_keys(world.app_id, journal.name, *world.log.tp))
            for journal in self.journals
        }
        self._name_of = {model.keys.meta: name for name, model in self.models.items()}
        self.ledger = JournalLedger(self.models)
        self._journal_readers: JournalReaders | None = None

    @property
    def keys(self) -> Mapping[str, Sequence[bytes]]:
        """All current keys; keys of blocks come and go."""
        return {name: self._keys_of(model) for name, model in self.models.items()}

    def _keys_of(self, model: JournalModel) -> list[bytes]:
        server = getattr(self._world, "server", None)  # unset while the world is created
        blocks = cast("list[bytes]", server.client.keys(f"{model.keys.blocks_prefix}*")) if server is not None else []
        return [*(key.encode() for key in model.keys.in_order[:3]), *sorted(blocks)]

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Lower the limits, shorten days to seconds, use unusual keys, and run the work of threads on the loop."""

        async def at_once(function: Callable[..., Any], *args: Any) -> Any:
            await asyncio.sleep(self._world.latency_seconds())  # virtual time
            return function(*args)

        with ExitStack() as stack:
            for number, (name, values) in enumerate(LIMITS.items()):
                value = values[(seed >> number % 3) % len(values)]
                stack.enter_context(patch(f"streams_app.journal.{name}", value))
            for module in ("core.day", "core.chunk", "agents.shard"):
                stack.enter_context(patch(f"streams_app.journal.{module}.day_of", day_of))
            stack.enter_context(patch("asyncio.to_thread", at_once))
            stack.enter_context(patch("tests.simulation.faults._event", _event))
            yield

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of a process, which are the same in each; readers start with the first one."""
        if self._journal_readers is None:
            fields = [[_member(key) for key in KEYS] + [UNKEYED], RAW_KEYS]
            self._journal_readers = JournalReaders(self._world, list(self.models.values()), fields)
        return _Journals(worker, self.journals)

    def token(self, args: Sequence[Any]) -> bytes:
        """Return the token in the only argument of a script, a map."""
        return cast("bytes", named(args).get("token", b""))

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Read the state before a script, because Redis may have lost or changed something."""
        model = self.models[self._name_of[keys[0]]]
        if name != "scan" and model.state is not None:
            model.state = model.now()

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Compare the state after a script with the model."""
        model, given = self.models[self._name_of[keys[0]]], named(args)
        if name != "scan" and reply[0] in (b"ok", b"new", b"already"):
            model.on_script(name, given, reply)
            self.ledger.records += name == "append"
            if name == "stage" and given["generation"] and "flips" in self._world.mix.faults and self._world.has_fault(0.3):
                self._world.count("flips")
                model.damage(given["first"], given["generation"])
        return name in ("append", "stage", "swap")

    def is_whole(self) -> bool:
        """Whether everything is stored, packed and removed as required, and all readers have reached the end."""
        return not self._unfinished() and self._world.now() > REST_SECONDS

    def _unfinished(self) -> list[str]:
        found = [f"{name}: {what}" for name, model in self.models.items() for what in model.unfinished()]
        readers = self._journal_readers.readers if self._journal_readers is not None else []
        return found + [f"a reader is at offset {reader.after}" for reader in readers if not reader.is_done]

    def state(self, name: str) -> Any:
        """Return its metadata, and the unfinished work."""
        now = self.models[name].now()
        return now and (now.meta, now.firsts), self._unfinished()

    def check_end(self) -> None:
        """Check that no block is left over that no entry names."""
        for name, model in self.models.items():
            state = model.now()
            self._world.counts["packed"] = self._world.counts.get("packed", 0) + model.packed
            self._world.counts["dropped"] = self._world.counts.get("dropped", 0) + model.dropped
            if state is None or state.blocks - state.named:
                self._world.report_fault("left", f"{name} has {state and state.blocks - state.named}")


def _shorter(journal: JournalSettings, **settings: Any) -> JournalSettings:
    """Return a journal with shorter and smaller limits than the settings allow."""
    return journal.model_copy(update=settings)


def _member(key: Any) -> bytes:
    return b"s" + key.encode() if isinstance(key, str) else b"j" + json.dumps(key).encode()


def _event(world: World, offset: int) -> Record:
    """Return an event with an unusual key, of any size and time."""
    rng = world.rng
    event: dict[str, Any] = {"a": rng.choice(KEYS[: rng.choice([2, len(KEYS)])]), "m": "x" * rng.choice(SIZES) + str(rng.random())}
    value: bytes | None = json.dumps(event).encode()
    if rng.random() < 0.1:
        value = rng.choice([None, b"", b"no json", b"[]", b"{}", b'{"a": null}', b"\xff\0"])
    born_ms = LoopClock().now_ms()
    stamp = born_ms - (world.behind_ms or rng.choice([0, 0, 0, 0, 200, 1_500, 2 * DAY_MS]))
    if rng.random() < world.future_share:
        stamp += FUTURE_MS
    if "history" in world.mix.faults:
        # Until then, past days, one after the other.
        world.history_ms += rng.choice([0, 100, 700, DAY_MS // 2])
        if round(world.now() * 1000) < HISTORY_MS:
            stamp = min(born_ms, born_ms - DAYS_OF_HISTORY * DAY_MS + world.history_ms)
    headers = (("h", rng.randbytes(2)),) if rng.random() < 0.2 else ()
    return Record(offset, stamp, born_ms, rng.choice(RAW_KEYS) or None, value, headers)
