"""Folding in a simulation: two folds of one source, with the processors of the product."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from streams_app.delivery.processor import Processors
from streams_app.fold import MAX_AGGREGATED, Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.agents.processors import FoldProcessors
from streams_app.folding.core import auto_quiet, chunks
from streams_app.folding.core.auto_quiet import QuietChange
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.shard import range_progress
from streams_app.folding.shard.quiet_period import ShardQuietPeriod
from streams_app.folding.store.codec import INFO_FIELD, StoredGroup, parts_of
from streams_app.folding.store.drop_request import DropRequest, dropped_groups
from streams_app.folding.store.keys import ShardKeys, shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.health.metrics import Metrics
from streams_app.quiet_period import AutoQuietPeriod, QuietPeriod
from streams_app.settings import Settings, WorkerSettings
from tests.simulation.kafka import Sender
from tests.simulation.ledger import AGGREGATES, Ledger
from tests.simulation.packed_groups import PackedGroups, packed_bytes, stored_group
from tests.simulation.redis import Link, Script, named

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

GROUPS = "pqrs"
WORK = (1, 25, 4_000)
"""Work of one script, in microseconds: enough for one group, for two or three, or for all groups of a range."""

SENT = (1, 3, 300)
"""Numbers of groups in one script; a schedule has few groups."""

RUNS = (2, 1_000)
"""Numbers of runs of a group in one chunk."""

QUIET_PERIODS = (*[timedelta(seconds=1)] * 3, QuietPeriod(field="q", default="600ms", at_most="1s"))
AUTO_QUIET = AutoQuietPeriod(auto="knee", at_least="300ms", default="600ms", at_most="1s")
FEW_BYTES = 150
"""A value of ``max_bytes`` that two events exceed."""

DONE = (b"ok", b"done", b"more")


def scores_in(given: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Return offset and score of the first and the last event of each run in the arguments of a script."""
    spans = struct.iter_unpack(">Iddd", given["spans"])
    for record, (_, first_offset, first_score, last_score) in zip(SealedGroup.unpack_all(given["sessions"]), spans, strict=True):
        yield int(first_offset), int(first_score)
        yield record.last_offset, int(last_score)
    for rest in map(list, filter(None, given["groups"][1::2])):
        for numbers in filter(None, map(_numbers_of, [rest] if isinstance(rest[0], int) else rest)):
            group = StoredGroup.unpack(numbers)
            yield group.first_offset, group.opened_ms
            yield group.last_offset, group.score_ms


def _numbers_of(entry: Any) -> bytes | None:
    """Return the packed numbers of a run; None if the entry has the ids of a run, or the reason why a group closes."""
    if not isinstance(entry, list) or not any(isinstance(part, bytes) for part in entry[2:3]):
        return None
    return cast("bytes", entry[3]) if entry[2] == INFO_FIELD else parts_of(entry[2])[0]


class Folding:
    """See :class:`tests.simulation.subject.Subject`."""

    is_exact = False
    release_seconds = 4.0
    reclaim_seconds = 0.0

    def __init__(self, world: World) -> None:
        """Declare two random folds."""
        self._world = world
        self.folds = {fold.name: fold for fold in self._new_folds()}
        self.shards = {name: shard_keys(world.app_id, name, fold.source, 0) for name, fold in self.folds.items()}
        self.keys = {name: list(_keys(keys)) for name, keys in self.shards.items()}
        self.ledger = Ledger(
            world.log,
            self.folds,
            world.report_fault,
            keeps_either="settings" in world.mix.faults,
            clocks_differ="clocks" in world.mix.faults,
        )
        self._fold_of = {keys.meta: name for name, keys in self.shards.items()}
        self._packed_groups = PackedGroups(world)

    def _new_folds(self) -> Iterator[Fold]:
        mix, rng = self._world.mix, self._world.rng
        start: Any = "latest" if "latest" in mix.faults else "earliest"
        details = self._world.rng_of("details")
        for name in ("a", "b"):
            keep: Any = rng.choice(["names", "last"])
            if "settings" not in mix.faults:
                keep = details.choice([keep, keep, keep, "events", AGGREGATES])
            quiet_period: Any = timedelta(seconds=1) if "settings" in mix.faults else details.choice(QUIET_PERIODS)
            quiet_period = AUTO_QUIET if "auto" in mix.faults else quiet_period
            keeps_events = keep == "events"
            unlimited = 10_000 if "dedupe" in mix.faults else 0
            yield Fold(
                name=name, source=self._world.log.tp.topic, group_key=name, changed="" if keeps_events else "m", keep=keep,
                max_bytes=details.choice([500_000, FEW_BYTES]) if keeps_events else 500_000,
                quiet_period=quiet_period, max_hold=timedelta(seconds=rng.choice([3.0, 3.0, 1.5])),
                max_events=rng.choice([0, 0, 3]) or unlimited, max_changed=min(rng.choice([10_000, 10_000, 2]), MAX_AGGREGATED),
                backlog=rng.choice(["merge", "sessions"]), start=start,
                tombstones=rng.choice(["dead-letter", "ignore"]),
                close_when=details.choice([None, None, None, {"m.u": (2,)}]),
                leading="settings" not in mix.faults and "dedupe" not in mix.faults and details.choice([False, False, False, True]),
                dedupe_by="i" if "dedupe" in mix.faults else None,
            )  # fmt: skip

    @contextmanager
    def limits(self, seed: int) -> Iterator[None]:
        """Limit scripts to a minimum of work, in two of three schedules, and packed groups to a few bytes in every other one."""
        work, sent, runs = WORK[seed % 3], SENT[seed // 3 % 3], RUNS[seed // 9 % 2]
        with (
            patch.multiple(range_progress, FIRST_GROUPS=sent, MAX_GROUPS=sent, SCRIPT_WORK=work),
            patch.object(chunks, "MAX_RUNS", runs),
            patch.multiple(auto_quiet, STEP_MS=500, FEWEST_STEPS=2, FEWEST_GAPS=4, WORTHWHILE=0.0),
            patch.object(ShardQuietPeriod, "_report", self._on_quiet_change),
            packed_bytes(seed),
        ):
            yield

    def _on_quiet_change(self, change: QuietChange) -> None:
        self._world.count("quiet-changed")

    def processors(self, worker: Worker) -> Processors:
        """Return the processors of a process: with ``foldset`` it may have only one fold, with ``settings`` other settings."""
        # Broken variants change the code in Python.
        settings = Settings(app_id=self._world.app_id, folds=self._folds_of_a_worker(), worker=WorkerSettings(native="off"))
        scripts = FoldScripts(cast("Any", Link(worker, self._world.server)))
        for name, script in scripts.by_name.items():
            cast("Script", script.script).name = name
        sender = cast("Any", Sender(worker))
        return FoldProcessors(FoldContext(settings, scripts, sender, worker.trusted, Metrics(settings), worker.status))

    def _folds_of_a_worker(self) -> tuple[Fold, ...]:
        world, folds = self._world, tuple(self.folds.values())
        if "foldset" in world.mix.faults and world.is_faulty and world.rng.random() < 0.5:
            folds = (world.rng.choice(folds),)
        if "settings" in world.mix.faults and world.is_faulty and world.rng.random() < 0.5:
            world.count("settings")
            folds = tuple(fold.model_copy(update=self._other_settings()) for fold in folds)
        return folds

    def _other_settings(self) -> dict[str, Any]:
        """Return the settings of a worker that was started before or after a change of the settings."""
        rng = self._world.rng
        return {
            "keep": rng.choice(["names", "last"]),
            "quiet_period": timedelta(seconds=rng.choice([0.5, 1.0, 1.4])),
            "max_hold": timedelta(seconds=rng.choice([1.5, 3.0])),
            "max_events": rng.choice([0, 2]),
            "max_changed": rng.choice([10_000, 2]),
            "backlog": rng.choice(["merge", "sessions"]),
        }

    def token(self, args: Sequence[Any]) -> bytes:
        """Return the token in the only argument of a script, a map."""
        return cast("bytes", named(args)["token"])

    def runs(self, name: str, keys: Sequence[str]) -> None:
        """Report a range in progress that another definition will fold again."""
        self._packed_groups.runs(name, ShardKeys(*keys))
        to = cast("bytes | None", self._world.server.client.hget(keys[0], "to")) if name == "define" else None
        if to is not None:
            self.ledger.on_refolding(self._fold_of[keys[0]], int(to))

    def ran(self, name: str, keys: Sequence[str], args: Sequence[Any], reply: Any) -> bool:
        """Report the effect of a script to the ledger."""
        self._packed_groups.ran(name, ShardKeys(*keys), named(args), reply)
        if name not in ("fold", "seal") or reply[0] not in DONE:
            return False
        fold, given = self._fold_of[keys[0]], named(args)
        if name == "fold":
            self._world.count(f"fold-{reply[0].decode()}")
            self.ledger.on_folding(fold, int(given["fence"]) + 1, scores_in(given))
            if given["quiet"]:
                self.ledger.on_quiet_period(fold, range(int(given["fence"]) + 1, int(given["to"]) + 1), int(given["quiet"]))
            return bool(reply[3])
        self.ledger.on_sealed(fold, reply[7], int(given["fence"]), int(reply[1]))
        for dropped in dropped_groups(reply[8]):
            self._world.count("dropped")
            self.ledger.on_dropped(fold, dropped)
        return bool(reply[7])

    def seen_by_operator(self) -> tuple[str, bytes, int] | None:
        """Return the fold, the member and the first offset of an open group; None if the fold has none."""
        client, name = self._world.server.client, self._world.rng.choice(list(self.shards))
        keys = self.shards[name]
        members: Any = client.zrange(keys.first, 0, -1)
        member = self._world.rng.choice(members) if members else b""
        group = stored_group(client, keys, member) if members else None
        return (name, member, group.first_offset) if group else None

    def request_drop(self, name: str, member: bytes, first_offset: int) -> None:
        """Request a drop in the same way as ``streams-app groups drop``."""
        self.ledger.on_drop_requested(name, member, first_offset)
        text = DropRequest(first_offset, "anna@host", "a loop").to_text()
        self._world.server.client.hset(self.shards[name].drop, member.decode(), text)

    def is_whole(self) -> bool:
        """Whether every group is emitted, and every request of an operator is done."""
        return not any(self._world.server.client.hlen(keys.drop) for keys in self.shards.values())

    def state(self, name: str) -> tuple[Any, int, int]:
        """Return fence, open groups and outbox."""
        client, keys = self._world.server.client, self.shards[name]
        return client.hget(keys.meta, "fence"), client.zcard(keys.first), client.zcard(keys.outbox)

    def check_end(self) -> None:
        """Check that nothing is lost, and that groups closed when they had to."""
        mix, server = self._world.mix, self._world.server
        self.ledger.check_end()
        ends = b":open", b":timers"
        of_groups = [key for key in server.keys(self.shards) if key.endswith(ends) or b":group:" in key or b":ids:" in key]
        left = [key for key in of_groups if server.client.exists(key)]
        if left and not server.losses and not mix.dying:
            self._world.report_fault("left", f"nothing is open, and Redis keeps {left}")
        if not mix.dying and "settings" not in mix.faults:
            self.ledger.check_limits(is_calm=mix.is_calm and range_progress.SCRIPT_WORK == WORK[-1])


def _keys(keys: ShardKeys) -> Iterator[bytes]:
    prefixes = keys.group_prefix, keys.ids_prefix
    yield from (str(value).encode() for value in asdict(keys).values() if value not in prefixes)
    yield from (f"{prefix}s{group}".encode() for prefix in prefixes for group in GROUPS)
