"""The faults of a simulated system, and their probabilities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tests.helpers.virtual_loop import LoopClock
from tests.simulation.folding import Folding
from tests.simulation.kafka import Record
from tests.simulation.ledger import positions_in
from tests.simulation.syncing import Syncing

if TYPE_CHECKING:
    from tests.simulation.world import World

FUTURE_MS = 60_000
HISTORY_MS = 12_000
HISTORY_AGE_MS = 1_000_000
HISTORY_STEPS_MS = (0, 100, 200, 700)
"""Steps whose sums are often exactly the quiet period or the maximum hold."""


QUIET_SECONDS = (1.0, 0.4, None, 0.7)
"""Values of the field by which events set their quiet period."""


SENT_TWICE = 0.3
"""Share of the events that are one of the last ones once more, with ``dedupe``."""


def append_some(world: World, count: int) -> None:
    """Append events, some of which must be rejected, and offsets without an event."""
    rng, log = world.rng, world.log
    if log.open_from is None and rng.random() < 0.05:
        log.open_from = log.end
    for _ in range(count):
        if rng.random() < 0.1:
            log.append(None)
        else:
            log.append(_event(world, log.end))
    if log.open_from is not None and rng.random() < 0.4:
        log.abort() if rng.random() < 0.5 else log.commit()


def _event(world: World, offset: int) -> Record:
    rng = world.rng
    event: dict[str, Any] = {"a": rng.choice("pqrs"), "b": rng.choice("pqrs")}
    event["m"] = {name: rng.randint(0, 3) for name in rng.sample("uvw", rng.randint(0, 2))}
    event["q"] = QUIET_SECONDS[offset % len(QUIET_SECONDS)]
    if "dedupe" in world.mix.faults:
        event = _maybe_sent_twice(world, {**event, "i": f"e{offset}"})
    value: bytes | None = json.dumps(event).encode()
    luck = rng.random()
    if luck < 0.03:
        value = rng.choice([None, b"", b"no json", b"[]"])
    elif luck < 0.08:
        event.pop(rng.choice("ab"), None)  # one that is sent twice may lack it already
        value = json.dumps(event).encode()
    late_ms = world.behind_ms or rng.choice([0, 0, 0, 0, 200, 1_500])
    born_ms = LoopClock().now_ms()
    stamp = born_ms - late_ms + (FUTURE_MS if rng.random() < world.future_share else 0)
    if "history" in world.mix.faults:
        # Old events until then: within one batch, open groups are updated, close, and open again.
        world.history_ms += rng.choice(HISTORY_STEPS_MS)
        if round(world.now() * 1000) < HISTORY_MS:
            stamp = born_ms - late_ms - HISTORY_AGE_MS + world.history_ms
    return Record(offset, stamp, born_ms, event.get("a", "").encode() or None, value)


def _maybe_sent_twice(world: World, event: dict[str, Any]) -> dict[str, Any]:
    """Return a new event, or one of the last ones once more, which has the same id."""
    if world.rng.random() >= SENT_TWICE:
        return event
    recent = [entry.value for entry in world.log.entries[-6:] if entry and entry.value and b'"i"' in entry.value]
    copied: dict[str, Any] = json.loads(world.rng.choice(recent)) if recent else event
    return copied


async def crash(world: World) -> None:
    """Kill the owner."""
    if world.group.worker:
        world.group.worker.kill()


async def zombie(world: World) -> None:
    """Suspend the owner; usually another worker gets the partition, and the former owner resumes without knowing."""
    owner, rng = world.group.worker, world.rng
    if owner is None or not owner.is_responsive:
        return
    owner.freeze()

    async def resumes() -> None:
        await asyncio.sleep(rng.uniform(0.1, rng.choice([4.0, 4.0, 9.0])))  # virtual time: the fault lasts
        owner.thaw()
        await asyncio.sleep(rng.uniform(0.0, 3.0))  # virtual time: until it detects the fault
        if world.group.worker is not owner and owner.is_responsive:
            await owner.leave()

    owner.spawn(resumes())
    if rng.random() < 0.8:
        await asyncio.sleep(rng.uniform(0.0, 0.5))  # virtual time: until the group detects it
        await world.rebalance(_another(world))


async def freeze(world: World) -> None:
    """Suspend the owner for longer than a fetch counts as recent; it stays the owner."""
    owner = world.group.worker
    if owner is None or not owner.is_responsive:
        return
    owner.freeze()

    async def resumes() -> None:
        await asyncio.sleep(world.rng.uniform(5.0, 8.0))  # virtual time: the fault lasts
        owner.thaw()

    owner.spawn(resumes())


async def rebalance(world: World) -> None:
    """Assign the partition to another member, or to the same one again; some fetched records are dropped."""
    owner = world.group.worker
    to = owner if owner and owner.is_responsive and world.rng.random() < 0.5 else _another(world)
    if world.rng.random() < 0.5:
        for batch in list(to.reader.fetched):
            if world.rng.random() < 0.5:
                to.reader.fetched.remove(batch)
    await world.rebalance(to)


async def wipe(world: World) -> None:
    """Remove the data of some folds from Redis, or only the fields of a shard's meta."""
    world.server.wipe(_some_folds(world), only_meta=world.rng.random() < 0.2)


async def rollback(world: World) -> None:
    """Roll Redis back to older data."""
    if world.committed is not None:
        world.server.roll_back(_some_folds(world), int(world.rng.expovariate(1 / world.rng.choice([1, 6, 30]))))


async def failover(world: World) -> None:
    """Replace the server of a read store by one that lacks the latest transactions."""
    assert isinstance(world.subject, Syncing), "only a read store fails over"
    world.subject.fail_over()


async def retention(world: World) -> None:
    """Remove the beginning of the log."""
    log = world.log
    log.start = world.rng.randint(log.start, log.stable)


async def forget(world: World) -> None:
    """Remove the committed offset from Kafka; Redis keeps its data."""
    if world.committed is not None and world.server.has_state():
        world.committed = None
        await world.rebalance(_another(world))


async def operator(world: World) -> None:
    """Request to drop an open group, usually after a while, in which it may have been emitted and opened again."""
    assert isinstance(world.subject, Folding), "only a fold has groups to drop"
    seen = world.subject.seen_by_operator()
    if seen is not None:
        await asyncio.sleep(world.rng.choice([0.0, 0.3, 2.0]))  # virtual time: until the operator decides
        world.subject.request_drop(*seen)


def _another(world: World) -> Any:
    """Return a member that responds, or a new one."""
    others = [worker for worker in world.workers[-3:] if worker.is_responsive and worker is not world.group.worker]
    return world.rng.choice(others) if others and world.rng.random() < 0.4 else world.new_worker()


def _some_folds(world: World) -> list[str]:
    """Return some folds, but none whose commit Kafka has lost, because only Redis has its position."""
    names = [world.rng.choice(list(world.folds))] if world.rng.random() < 0.4 else list(world.folds)
    return names if not world.counts.get("forget") else [name for name in names if name in positions_in(world.committed)]


FAULTS: Final[dict[str, tuple[float, Callable[[World], Awaitable[None]]]]] = {
    "crash": (0.015, crash),
    "zombie": (0.02, zombie),
    "freeze": (0.02, freeze),
    "rebalance": (0.02, rebalance),
    "wipe": (0.015, wipe),
    "rollback": (0.025, rollback),
    "failover": (0.025, failover),
    "retention": (0.01, retention),
    "forget": (0.01, forget),
    "operator": (0.03, operator),
}
