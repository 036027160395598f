"""Redis as the simulated workers see it: the real scripts on a real server, behind a network that loses requests and replies.

The server is called synchronously, so that every script takes no virtual time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.helpers.virtual_loop import LoopClock
from tests.simulation.subject import Subject

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

WRITES_BEFORE_FAILURE = 6

_FAILING = """
local real, left = redis, {left}
local writes = {{HSET = 1, HDEL = 1, DEL = 1, ZADD = 1, UNLINK = 1, ZREM = 1, ZREMRANGEBYSCORE = 1, SREM = 1}}
local redis = {{call = function(command, ...)
  if writes[command] then
    if left == 0 then error('the script fails here') end
    left = left - 1
  end
  return real.call(command, ...)
end}}
"""


def dying(text: str, writes: int) -> str:
    """Return a script that fails after this many writes, which are kept."""
    shebang, _, body = text.partition("\n")
    return shebang + _FAILING.format(left=writes) + body


def named(args: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of a script by name."""
    return {name.decode(): value for name, value in msgpack.unpackb(args[0], raw=True).items()}


@dataclass(slots=True)
class Server:
    """The keys of one simulated application on a real server.

    Attributes:
        client: Client of the server.
        subject: The processors that own the keys.
        world: Receives violations.
        restarts: Number of restarts. A restart cuts every connection: requests in transit never arrive.
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
        """Run one script at once."""
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
        if name not in ("watermark", "progress", "scan"):  # read-only scripts
            self._check_owner(name, keys[0], self.subject.token(args), reply[0] if isinstance(reply, list) else b"")
        return reply

    def _check_owner(self, name: str, meta: str, token: bytes, status: bytes) -> None:
        """Check that a former owner changes nothing in a shard that another worker has claimed."""
        if name == "claim" and status != b"refused":
            self.owners[meta] = token
        elif status in (b"ok", b"done", b"more", b"already") and self.owners.get(meta) != token:
            self.world.report_fault("intruder", f"{name} was executed for a worker that is not the owner of {meta}")

    def keys(self, names: Iterable[str]) -> list[bytes]:
        """Return every key that may exist."""
        return [key for name in names for key in self.subject.keys[name]]

    def meta(self, name: str) -> str:
        """Return the key with token and fence of a processor."""
        return self.subject.keys[name][0].decode()

    def has_state(self) -> bool:
        """Whether every processor has state."""
        return all(self.client.hexists(self.meta(name), "fence") for name in self.subject.keys)

    def take_snapshot(self) -> None:
        """Store a copy of all keys for a later rollback."""
        copy: dict[str, dict[bytes, bytes]] = {}
        for fold in self.subject.keys:
            names = self.keys([fold])
            pipe = self.client.pipeline(transaction=False)
            for name in names:
                pipe.dump(name)
            copy[fold] = {name: dump for name, dump in zip(names, pipe.execute(), strict=True) if dump is not None}
        self.snapshots.append(copy)

    def wipe(self, folds: Sequence[str], *, only_meta: bool = False) -> None:
        """Remove the data of some folds; connections stay open."""
        self._lose(folds)
        names = [self.meta(fold).encode() for fold in folds] if only_meta else self.keys(folds)
        if names:
            self.client.delete(*names)

    def roll_back(self, folds: Sequence[str], steps: int) -> None:
        """Restore some folds from the snapshot ``steps`` snapshots ago."""
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
        """Remove every key."""
        self.client.delete(*self.keys(self.subject.keys))


class Script:
    """The result of ``register_script``."""

    def __init__(self, link: Link, text: str) -> None:
        self.name = ""
        self._link = link
        self._text = text

    async def __call__(self, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run the script; the reply may be lost, and the script may fail half-way."""
        link, text = self._link, self._text
        if link.dies(self.name):
            text = dying(text, link.worker.world.rng.randrange(WRITES_BEFORE_FAILURE))
        began_at = link.worker.claim_began_at

        def run() -> Any:
            # A repeated claim takes nothing from another owner: the script rejects it if there was one.
            if self.name == "claim" and not named(args).get("retried"):
                link.worker.check_claim(began_at)
            return link.server.run(self.name, text, keys, args)

        return await link.call(run, self.name)


class Link:
    """The client of one worker: the part of ``redis.asyncio.Redis`` that the product uses."""

    def __init__(self, worker: Worker, server: Server) -> None:
        self.worker = worker
        self.server = server

    def register_script(self, text: str) -> Script:
        """Register a script as redis-py does; its name is set later."""
        return Script(self, text)

    def pipeline(self, *, transaction: bool) -> Pipeline:
        """As redis-py."""
        return Pipeline(self)

    def dies(self, name: str) -> bool:
        """Whether the current script call fails half-way."""
        world = self.worker.world
        return name in world.mix.dying and world.has_fault(0.1)

    async def call(self, execute: Callable[[], Any], name: str = "") -> Any:
        """Send a command over the simulated network."""
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

    async def zrangebylex(self, name: str, low: bytes, high: bytes, *, start: int, num: int) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.zrangebylex(name, low, high, start=start, num=num))

    async def hmget(self, name: str, fields: Sequence[str]) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.hmget(name, list(fields)))

    async def zcard(self, name: str) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.zcard(name))

    async def hlen(self, name: str) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.hlen(name))

    async def hget(self, name: str, key: str) -> Any:
        """As redis-py."""
        return await self.call(lambda: self.server.client.hget(name, key))

    async def time(self) -> tuple[int, int]:
        """Return the time of the server, which is correct, as redis-py does."""
        now_ms = await self.call(LoopClock().now_ms)
        return now_ms // 1_000, now_ms % 1_000 * 1_000

    async def lowest(self, name: str) -> list[float]:
        """Return the lowest score of a sorted set; only a broken variant of the product calls this."""
        found = await self.call(lambda: self.server.client.zrange(name, 0, 0, withscores=True))
        return [score for _, score in found]


class Pipeline:
    """Reads the owners of all shards in one request, which is answered at once.

    In some schedules, an older worker owns another shard, always or for a while: sealed records and groups are stored one by one.
    """

    def __init__(self, link: Link) -> None:
        self._world, self._client = link.worker.world, link.server.client
        self._asked: list[tuple[str, list[str]]] = []

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def hmget(self, name: str, fields: list[str]) -> None:
        """As redis-py."""
        self._asked.append((name, fields))

    async def execute(self) -> list[Any]:
        """As redis-py."""
        older = [[b"older", None]] if self._world.has_older_worker() else []
        return older + [self._client.hmget(name, fields) for name, fields in self._asked]
