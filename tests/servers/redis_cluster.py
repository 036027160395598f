"""A Redis Cluster: three primaries with a third of the slots each, and a replica for each of them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from streams_app.embedded import Valkey
from streams_app.embedded.ports import LOOPBACK, free_port
from tests.helpers.waiting import wait_until_sync
from tests.servers.redis7 import Redis7

SLOTS = ((0, 5461), (5462, 10922), (10923, 16383))
LIMIT_SECONDS = 60
MIGRATE_AT_ONCE = 10
MIGRATE_EVERY_SECONDS = 0.3

_OPTIONS = (
    "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no",
    "--repl-diskless-sync-delay", "0", "--cluster-allow-replica-migration", "no",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """A node in the state of the cluster.

    Attributes:
        follows: Id of its primary; None if it is a primary.
        slots: First and last slot of each range, without those that are being moved.
    """

    id: str
    port: int
    is_up: bool
    follows: str | None
    slots: tuple[tuple[int, int], ...]


class ReplicatedCluster:
    """The running nodes; a context manager that ends them.

    Attributes:
        servers: Port → the server, of each that was not killed.
    """

    def __init__(self, kind: type[Redis7 | Valkey], folder: Path | None = None) -> None:
        self._kind = kind
        self._is_temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="streams-app-cluster-"))
        self.servers: dict[int, Redis7 | Valkey] = {}
        self._bus: dict[int, int] = {}

    @classmethod
    def start(cls, kind: type[Redis7 | Valkey] = Valkey, folder: Path | None = None) -> Self:
        """Start the nodes and return when all know each other and every replica is in sync."""
        cluster = cls(kind, folder)
        try:
            ports = [cluster.start_node() for _ in range(2 * len(SLOTS))]
            for number, (port, (first, last)) in enumerate(zip(ports, SLOTS, strict=False), start=1):
                cluster.ask(port, "ADDSLOTSRANGE", first, last)
                cluster.ask(port, "SET-CONFIG-EPOCH", number)
            for port in ports[1:]:
                cluster.ask(ports[0], "MEET", LOOPBACK, port, cluster._bus[port])
            for primary, replica in zip(ports, ports[len(SLOTS) :], strict=False):
                cluster._follow(replica, str(cluster.ask(primary, "MYID")))
            cluster.wait_complete()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def start_node(self, port: int | None = None) -> int:
        """Start a node, also with the data of a killed one; return its port."""
        port = port or free_port()
        bus = self._bus.setdefault(port, free_port())  # the default is in the range of ephemeral ports
        options = [*_OPTIONS, "--cluster-port", str(bus)]
        self.servers[port] = self._kind.start(port, self._folder / f"node-{port}", appendonly=True, extra_args=options)
        return port

    def _follow(self, replica: int, primary_id: str) -> None:
        def is_done() -> bool:
            try:
                self.ask(replica, "REPLICATE", primary_id)
            except redis.ResponseError:  # the node does not know that one yet
                return False
            return True

        wait_until_sync(is_done, LIMIT_SECONDS, "a node becomes a replica")

    def ask(self, port: int, *words: object) -> Any:
        """Send a CLUSTER command to one node."""
        with redis.Redis(port=port, socket_timeout=10, decode_responses=True) as client:
            return client.execute_command("CLUSTER", *words)

    @property
    def url(self) -> str:
        """Value of `redis.url`: the initial primaries."""
        return f"redis+cluster://{','.join(f'{LOOPBACK}:{port}' for port in list(self.servers)[: len(SLOTS)])}"

    def nodes(self, port: int | None = None) -> list[Node]:
        """Return all nodes in the state of one of them."""
        with redis.Redis(port=port or next(iter(self.servers)), socket_timeout=10, decode_responses=True) as client:
            text = str(client.execute_command("CLUSTER", "NODES"))
        return [_node(line.split()) for line in text.splitlines()]

    def primaries(self) -> list[Node]:
        """Return the running primaries that have slots."""
        return [node for node in self.nodes() if node.is_up and node.follows is None and node.slots]

    def replica_of(self, primary: Node) -> Node:
        """Return a running replica of a primary."""
        return next(node for node in self.nodes() if node.is_up and node.follows == primary.id)

    def wait_complete(self) -> None:
        """Wait until each node sees all slots served, and each primary with a replica that is in sync."""

        def is_complete() -> bool:
            for port in self.servers:
                nodes = self.nodes(port)
                primaries = [node for node in nodes if node.is_up and node.follows is None and node.slots]
                covered = sum(last - first + 1 for node in primaries for first, last in node.slots)
                followed = {node.follows for node in nodes if node.is_up and node.follows}
                if covered != SLOTS[-1][1] + 1 or followed != {node.id for node in primaries}:
                    return False
                with redis.Redis(port=port, socket_timeout=10) as client:
                    about = client.info("replication")
                if about["role"] == "slave" and about["master_link_status"] != "up":
                    return False
                if "cluster_state:ok" not in str(self.ask(port, "INFO")):
                    return False
            return True

        wait_until_sync(is_complete, LIMIT_SECONDS, "the cluster is complete")

    def wait_promoted(self, former: Node) -> Node:
        """Wait until every running node reports who has taken over the slots of another node; return that node."""

        def heir(port: int) -> Node | None:
            slot = former.slots[0][0]
            found = [node for node in self.nodes(port) if any(first <= slot <= last for first, last in node.slots)]
            return next((node for node in found if node.is_up and node.id != former.id and node.follows is None), None)

        def is_agreed() -> bool:
            return len({node and node.id for node in map(heir, self.servers)} - {None}) == 1 and all(map(heir, self.servers))

        wait_until_sync(is_agreed, LIMIT_SECONDS, "a replica is promoted")
        found = heir(next(iter(self.servers)))
        assert found is not None
        return found

    def keys_in(self, node: Node, slot: int) -> int:
        """Return the number of keys in a slot."""
        return int(self.ask(node.port, "COUNTKEYSINSLOT", slot))

    def busy_slots(self, node: Node) -> list[int]:
        """Return the slots of a primary that have keys."""
        with redis.Redis(port=node.port, socket_timeout=10) as client:
            found = {int(client.execute_command("CLUSTER", "KEYSLOT", key)) for key in client.scan_iter(count=1000)}
        return sorted(slot for slot in found if any(first <= slot <= last for first, last in node.slots))

    def move_slot(self, slot: int, source: Node, target: Node) -> int:
        """Move a slot with its keys while clients use it, as redis-cli does; return how many keys there were.

        While that lasts, keys of the slot are on both nodes, each on one of them: a slot with many keys takes long.
        """
        self.ask(target.port, "SETSLOT", slot, "IMPORTING", source.id)
        self.ask(source.port, "SETSLOT", slot, "MIGRATING", target.id)
        moved = 0
        with redis.Redis(port=source.port, socket_timeout=30) as client:
            while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, MIGRATE_AT_ONCE):
                client.execute_command("MIGRATE", LOOPBACK, target.port, "", 0, 10_000, "KEYS", *keys)
                moved += len(keys)
                time.sleep(MIGRATE_EVERY_SECONDS)  # simulates many more keys
        for node in (target, source, *(one for one in self.primaries() if one.id not in (source.id, target.id))):
            self.ask(node.port, "SETSLOT", slot, "NODE", target.id)
        return moved

    def kill(self, node: Node) -> None:
        """SIGKILL."""
        self.servers.pop(node.port).kill()

    def stop(self) -> None:
        """End all; a second call does nothing."""
        for server in self.servers.values():
            server.kill()
        self.servers.clear()
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()


def _node(words: Sequence[str]) -> Node:
    """Parse a line of CLUSTER NODES."""
    identity, address, flags, follows, *_ = words
    ranges = [word.partition("-") for word in words[8:] if not word.startswith("[")]
    return Node(
        identity,
        int(address.partition("@")[0].rpartition(":")[2]),
        not {"fail", "fail?", "handshake", "noaddr"} & set(flags.split(",")) and words[7] == "connected",
        None if follows == "-" else follows,
        tuple((int(first), int(last or first)) for first, _, last in ranges),
    )
