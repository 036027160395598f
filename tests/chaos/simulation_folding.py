"""Folding in a simulation: two folds of one source, as the product has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from streams_app.delivery.processor import Processors
from streams_app.fold import Fold
from streams_app.folding.agents.parts import Parts
from streams_app.folding.agents.processors import FoldProcessors
from streams_app.folding.core import chunks as batch
from streams_app.folding.shard import cutting, shard
from streams_app.folding.store import portions, scripts
from streams_app.folding.store.keys import ShardKeys, shard_keys
from streams_app.folding.store.scripts import ScriptSet
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from tests.chaos.simulation_kafka import Sender
from tests.chaos.simulation_ledger import Ledger
from tests.chaos.simulation_redis import Link, Script

if TYPE_CHECKING:
    from tests.chaos.simulation import World
    from tests.chaos.simulation_worker import Worker

GROUPS = "pqrs"
UNDO = b"\xff"
"""In the place of a group: what groups were that go on ahead of the fence, see :mod:`streams_app.folding.store.keys`."""

PORTIONS = (1, 2, 500)
"""Sessions and groups that one script stages: a schedule has few of them."""

HELD = (1, 4, 500)
"""Groups and sessions that the script which folds may look at."""

SMALL = {
    "UNDONE, PAGE_OF_UNDO, MOST_UNDO = 1000, 20, 4000": "UNDONE, PAGE_OF_UNDO, MOST_UNDO = 1, 1, 1",
    "MOST_READ, ENDING, BYTES = 2500, 20, 75": "MOST_READ, ENDING, BYTES = 1, 20, 75",
}
"""What one script undoes, or reads of groups that end: as little as can be."""


@contextmanager
def _with_small_scripts() -> Iterator[None]:
    with_included = scripts.with_included
    unused = set(SMALL)

    def small(text: str) -> str:
        text = with_included(text)
        for limit, less in SMALL.items():
            unused.difference_update([limit] if limit in text else [])
            text = text.replace(limit, less)
        return text

    with patch.object(scripts, "with_included", small):
        yield
    assert not unused, f"no script says {unused}"


class Folding:
    """See :class:`tests.chaos.simulation_subject.Subject`."""

    def __init__(self, world: World) -> None:
        """Declares two folds by chance."""
        self._world = world
        self.folds = {fold.name: fold for fold in self._new_folds()}
        self.shards = {name: shard_keys(world.app_id, name, fold.source, 0) for name, fold in self.folds.items()}
        self.keys = {name: list(_keys(keys)) for name, keys in self.shards.items()}
        self.ledger = Ledger(world.log, self.folds, world.tell, keeps_either="settings" in world.mix.faults)
        self._fold_of = {keys.meta: name for name, keys in self.shards.items()}

    def _new_folds(self) -> Iterator[Fold]:
        mix, rng = self._world.mix, self._world.rng
        start: Any = "latest" if "latest" in mix.faults else "earliest"
        for name in ("a", "b"):
            yield Fold(
                name=name, source=self._world.log.tp.topic, group_key=name, changed="m",
                keep=rng.choice(["names", "last"]),
                quiet_period=timedelta(seconds=1), max_hold=timedelta(seconds=rng.choice([3.0, 3.0, 1.5])),
                max_events=rng.choice([0, 0, 3]), max_changed=rng.choice([10_000, 10_000, 2]),
                backlog=rng.choice(["merge", "sessions"]), start=start,
                tombstones=rng.choice(["dead-letter", "ignore"]),
            )  # fmt: skip

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Scripts do as little at once as they can, in two schedules of three."""
        most = PORTIONS[seed % len(PORTIONS)]
        held = HELD[seed // len(PORTIONS) % len(HELD)]
        with (
            patch.multiple(portions, STAGED_RECORDS=most, STAGED_GROUPS=most, SINGLE_GROUPS=most),
            patch.multiple(batch, LEAST_RUNS=min(held, 4), HELD_RUNS=held),
            patch.object(shard, "MOST_HELD", held),
            patch.object(cutting, "HELD_RUNS", held),
            _with_small_scripts() if most < PORTIONS[-1] else nullcontext(),
        ):
            yield

    def processors(self, worker: Worker) -> Processors:
        """With ``foldset`` a worker may know one fold only, with ``settings`` it may know it otherwise."""
        settings = Settings(app_id=self._world.app_id, folds=self._folds_of_a_worker())
        known = ScriptSet(cast("Any", Link(worker, self._world.server)))
        for name, script in known.by_name.items():
            cast("Script", script.script).name = name
        sender = cast("Any", Sender(worker))
        return FoldProcessors(Parts(settings, known, sender, worker.trusted, Metrics(settings), worker.status))

    def _folds_of_a_worker(self) -> tuple[Fold, ...]:
        world, folds = self._world, tuple(self.folds.values())
        if "foldset" in world.mix.faults and world.is_faulty and world.rng.random() < 0.5:
            folds = (world.rng.choice(folds),)
        if "settings" in world.mix.faults and world.is_faulty and world.rng.random() < 0.5:
            world.count("settings")
            folds = tuple(fold.model_copy(update=self._other_settings()) for fold in folds)
        return folds

    def _other_settings(self) -> dict[str, Any]:
        """What a worker may have that was started before, or after, somebody changed the settings."""
        rng = self._world.rng
        return {
            "keep": rng.choice(["names", "last"]),
            "quiet_period": timedelta(seconds=rng.choice([0.5, 1.0, 1.4])),
            "max_hold": timedelta(seconds=rng.choice([1.5, 3.0])),
            "max_events": rng.choice([0, 2]),
            "max_changed": rng.choice([10_000, 2]),
            "backlog": rng.choice(["merge", "sessions"]),
        }

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Tells the ledger what a script did."""
        if name == "fold" and reply[0] == b"ok":
            self.ledger.on_folding(self._fold_of[keys[0]], int(args[1]) + 1)
        if name == "seal" and reply[0] == b"ok":
            self.ledger.on_sealed(self._fold_of[keys[0]], reply[7], int(args[1]), int(args[2]))
        return name in ("seal", "fold") and bool(reply[-1])

    def is_whole(self) -> bool:
        """What it owes has left it."""
        return True

    def state(self, name: str) -> tuple[Any, int, int]:
        """Fence, open groups and outbox."""
        client, keys = self._world.server.client, self.shards[name]
        return client.hget(keys.meta, "fence"), client.zcard(keys.first), client.zcard(keys.outbox)

    def check_end(self) -> None:
        """Nothing is lost, and groups ended when they had to."""
        mix = self._world.mix
        self.ledger.check_end()
        if not mix.dying and "settings" not in mix.faults:
            self.ledger.check_limits(is_calm=mix.is_calm and batch.HELD_RUNS == HELD[-1])


def _keys(keys: ShardKeys) -> Iterator[bytes]:
    yield from (str(value).encode() for name, value in asdict(keys).items() if name != "group_prefix")
    yield from (keys.group_prefix.encode() + member for member in (UNDO, *(b"s" + group.encode() for group in GROUPS)))
