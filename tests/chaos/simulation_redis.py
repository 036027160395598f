"""Redis as the simulated workers see it: the real scripts on a real server, behind a wire that loses things.

The server is asked synchronously, so that every script is one moment of the virtual time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.chaos.simulation_subject import Subject
from tests.virtual_loop import LoopClock

if TYPE_CHECKING:
    from tests.chaos.simulation import World
    from tests.chaos.simulation_worker import Worker

WRITES_BEFORE_DEATH = 6

_DYING = """
local real, left = redis, {left}
local writes = {{HSET = 1, DEL = 1, ZADD = 1, UNLINK = 1, ZREM = 1, ZREMRANGEBYSCORE = 1, SREM = 1}}
local redis = {{call = function(command, ...)
  if writes[command] then
    if left == 0 then error('the script dies here') end
    left = left - 1
  end
  return real.call(command, ...)
end}}
"""


def dying(text: str, writes: int) -> str:
    """A script that dies after so many writes, which stay."""
    shebang, _, body = text.partition("\n")
    return shebang + _DYING.format(left=writes) + body


def named(args: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a script."""
    return {name.decode(): value for name, value in msgpack.unpackb(args[0], raw=True).items()}


@dataclass(slots=True)
class Server:
    """The keys of one simulated application on a real server.

    Attributes:
        client: Of the server.
        subject: Whose keys they are.
        world: Takes violations.
        restarts: A restart cuts every connection: what was on its way never arrives.
    """

    client: redis.Redis
    subject: Subject
    world: World
    restarts: int = 0
    losses: int = 0
    snapshots: list[dict[str, dict[bytes, bytes]]] = field(default_factory=list)
    owners: dict[str, bytes] = field(default_factory=dict)
    loaded: dict[str, str] = field(default_factory=dict)
    scripts_run: int = 0

    def run(self, name: str, text: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """One script, at once."""
        self.scripts_run += 1
        sha = self.loaded.get(text)
        if sha is None:
            sha = self.loaded[text] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            self.client.script_load(text)
        self.subject.runs(name, keys)
        reply: Any = self.client.evalsha(sha, len(keys), *keys, *args)
        has_sealed = self.subject.ran(name, keys, args, reply)
        if self.world.is_snapshot_due(has_sealed):
            self.take_snapshot()
        if name not in ("watermark", "progress", "scan"):  # these only read
            self._check_owner(name, keys[0], self.subject.token(args), reply[0] if isinstance(reply, list) else b"")
        return reply

    def _check_owner(self, name: str, meta: str, token: bytes, status: bytes) -> None:
        """Once somebody else has claimed a shard, nothing that its former owner does may change it."""
        if name == "claim" and status != b"refused":
            self.owners[meta] = token
        elif status in (b"ok", b"done", b"more", b"already") and self.owners.get(meta) != token:
            self.world.report_fault("intruder", f"{name} was done for a worker that is not the owner of {meta}")

    def keys(self, names: Iterable[str]) -> list[bytes]:
        """Every key that may exist."""
        return [key for name in names for key in self.subject.keys[name]]

    def meta(self, name: str) -> str:
        """The key that holds the marks of a processor."""
        return self.subject.keys[name][0].decode()

    def has_state(self) -> bool:
        """Whether every processor has state."""
        return all(self.client.hexists(self.meta(name), "fence") for name in self.subject.keys)

    def take_snapshot(self) -> None:
        """Keeps a copy of everything, to come back to."""
        copy: dict[str, dict[bytes, bytes]] = {}
        for fold in self.subject.keys:
            names = self.keys([fold])
            pipe = self.client.pipeline(transaction=False)
            for name in names:
                pipe.dump(name)
            copy[fold] = {name: dump for name, dump in zip(names, pipe.execute(), strict=True) if dump is not None}
        self.snapshots.append(copy)

    def wipe(self, folds: Sequence[str], *, only_meta: bool = False) -> None:
        """The data of some folds is gone; connections stay."""
        self._lose(folds)
        names = [self.meta(fold).encode() for fold in folds] if only_meta else self.keys(folds)
        if names:
            self.client.delete(*names)

    def roll_back(self, folds: Sequence[str], steps: int) -> None:
        """Some folds are as they were ``steps`` snapshots ago."""
        if not self.snapshots or not folds:
            return
        self._lose(folds)
        self.restarts += 1
        copy = self.snapshots[max(0, len(self.snapshots) - 1 - steps)]
        self.client.delete(*self.keys(folds))
        for fold in folds:
            for name, dump in copy[fold].items():
                self.client.restore(name, 0, dump)
            meta = self.meta(fold)
            token: Any = self.client.hget(meta, "token")
            self.owners[meta] = token or b""

    def _lose(self, folds: Sequence[str]) -> None:
        self.losses += 1
        for fold in folds:
            self.world.ledger.on_loss(fold)

    def close(self) -> None:
        """Removes every key."""
        self.client.delete(*self.keys(self.subject.keys))


class Script:
    """What ``register_script`` gives."""

    def __init__(self, link: Link, text: str) -> None:
        self.name = ""
        self._link = link
        self._text = text

    async def __call__(self, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Runs it; the reply may be lost, and the script may die half-way."""
        link, text = self._link, self._text
        if link.dies(self.name):
            text = dying(text, link.worker.world.rng.randrange(WRITES_BEFORE_DEATH))
        began_at = link.worker.claim_began_at

        def run() -> Any:
            # One that claims again takes nothing from anybody: the script refuses it where another owner has been.
            if self.name == "claim" and not named(args).get("retried"):
                link.worker.check_claim(began_at)
            return link.server.run(self.name, text, keys, args)

        return await link.call(run, self.name)


class Link:
    """One worker's client: the part of ``redis.asyncio.Redis`` that the product uses."""

    def __init__(self, worker: Worker, server: Server) -> None:
        self.worker = worker
        self.server = server

    def register_script(self, text: str) -> Script:
        """As redis-py does; the name is told later."""
        return Script(self, text)

    def dies(self, name: str) -> bool:
        """Whether the script that is called now dies half-way."""
        world = self.worker.world
        return name in world.mix.dying and world.has_fault(0.1)

    async def call(self, execute: Callable[[], Any], name: str = "") -> Any:
        """Sends a command over the wire."""
        restarts = self.server.restarts

        def arrive() -> Any:
            if restarts != self.server.restarts:
                raise RedisConnectionError("the server was restarted")
            return execute()

        return await self.worker.call(arrive, RedisConnectionError, name=name, may_be_late=True)

    async def zrangebyscore(self, name: str, low: str, high: str, *, start: int, num: int, withscores: bool) -> Any:
        """As redis-py."""
        client = self.server.client
        return await self.call(lambda: client.zrangebyscore(name, low, high, start=start, num=num, withscores=withscores), "outbox")

    async def hmget(self, name: str, fields: Sequence[str]) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.hmget(name, list(fields)))

    async def zcard(self, name: str) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.zcard(name))

    async def hget(self, name: str, key: str) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.hget(name, key))

    async def time(self) -> tuple[int, int]:
        """As redis-py; the clock of the server is right."""
        now_ms = await self.call(LoopClock().now_ms)
        return now_ms // 1_000, now_ms % 1_000 * 1_000

    async def lowest(self, name: str) -> list[float]:
        """Lowest score of a sorted set; only a broken variant of the product asks so."""
        found = await self.call(lambda: self.server.client.zrange(name, 0, 0, withscores=True))
        return [score for _, score in found]
