"""The shards this worker has, and what was last snapshots of those it was_claimed."""

from __future__ import annotations

from collections.abc import Collection

from streams_app.delivery.batch import TP
from streams_app.folding.agents.emission import Emitter
from streams_app.folding.agents.lag import ShardKey
from streams_app.folding.agents.shard_snapshots import ShardSnapshots
from streams_app.folding.shard.shard import Shard


class ClaimedShards:
    """The shards of this worker; written by the main loop, and read from any thread.

    Attributes:
        snapshots: What was last snapshots of each shard.
    """

    def __init__(self) -> None:
        """Has no shard yet."""
        self.snapshots = ShardSnapshots()
        self._emitters: dict[ShardKey, Emitter] = {}
        self._ever: set[ShardKey] = set()

    def add(self, emitter: Emitter) -> None:
        """Adds a shard that has been claimed."""
        self._emitters[emitter.shard.key] = emitter
        self._ever.add(emitter.shard.key)

    def remove(self, emitter: Emitter) -> None:
        """Takes out a shard that is let go, unless it was claimed anew meanwhile."""
        key = emitter.shard.key
        if self._emitters.get(key) is emitter:
            del self._emitters[key]

    def was_claimed(self, shard: Shard) -> bool:
        """Whether this process has ever was_claimed the shard."""
        return shard.key in self._ever

    def shards(self) -> list[Shard]:
        """Shards the worker has now."""
        return [emitter.shard for emitter in self._emitters.copy().values()]

    def fences(self) -> dict[ShardKey, int]:
        """Highest offset folded, for each shard the worker has now."""
        return {shard.key: shard.fence for shard in self.shards()}

    def update(self, assigned: Collection[TP], now_ms: int, monotonic_ms: int) -> None:
        """Notes what is snapshots of every shard."""
        claimed = [(emitter.shard, emitter.acknowledged) for emitter in self._emitters.values()]
        self.snapshots.update(claimed, assigned, now_ms, monotonic_ms)
