"""The lag of each fold: the number of source offsets that are not folded, in all partitions, including those of other workers.

If each worker counted only its own partitions, no worker would count those without an owner. In an outage in which partitions are
revoked, the lag would fall to 0. So each worker reports the lag of the whole consumer group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import offsets_of
from streams_app.fold import Fold
from streams_app.folding.store.keys import shard_keys
from streams_app.redis_access.client import WriteRejection, connect, write_rejection
from streams_app.settings import Settings

ShardKey: TypeAlias = tuple[str, TP]
"""Name of a fold, and a partition of its source."""


READ_MS: Final = 10_000
"""Time, in ms, for which an end offset from a fetch reply is used after its partition was released.

By then, the broker has returned a newer end offset.
"""


@dataclass(slots=True)
class PartitionEnds:
    """Keeps the last known end offset of each partition, from queries or from fetches; the higher value counts."""

    _read: dict[TP, tuple[int, int]] = field(default_factory=dict)

    def combined(
        self, asked: Mapping[TP, int], read: Mapping[TP, int | None], now_ms: int, *, is_answering: bool
    ) -> dict[TP, int]:  # fmt: skip
        """Return the latest known end offset of each partition in ``asked``.

        Args:
            asked: End offset of each partition, as the broker last returned it to a query.
            read: End offset in the last fetch reply of each partition; None for a partition that this worker does not read.
            now_ms: Monotonic clock, in ms.
            is_answering: Whether the broker answers, so that ``asked`` is recent.
        """
        self._read |= {tp: (end, now_ms) for tp, end in read.items() if end is not None}
        if is_answering:
            self._read = {tp: (end, at_ms) for tp, (end, at_ms) in self._read.items() if now_ms - at_ms < READ_MS}
        return {tp: max(end, self._read.get(tp, (0, 0))[0]) for tp, end in asked.items()}


def lags(
    folds: Iterable[Fold], ends: Mapping[TP, int], begins: Mapping[TP, int], committed: Mapping[TP, PartitionCommit],
    fences: Mapping[ShardKey, int],
) -> dict[str, int]:  # fmt: skip
    """Return the lag of each fold; a shard that is missing in ``fences`` has no state."""
    return {
        fold.name: sum(
            max(0, end - _next(fold, tp, end, begins, committed, fences)) for tp, end in ends.items() if tp.topic == fold.source
        )
        for fold in folds
    }


def _next(
    fold: Fold, tp: TP, end: int, begins: Mapping[TP, int], committed: Mapping[TP, PartitionCommit], fences: Mapping[ShardKey, int]
) -> int:
    """Return the offset from which a fold would continue a partition if a worker claimed the partition now."""
    fence = fences.get((fold.name, tp))
    if fence is not None:
        return max(fence + 1, begins.get(tp, 0))
    commit = committed.get(tp)
    position = None if commit is None else offsets_of(commit, (fold.name,)).get(fold.name)
    if position is not None:
        return position.offset
    return end if fold.start == "latest" else begins.get(tp, 0)


SOCKET_SECONDS: Final = 2.0


class StoredFences:
    """The fences of the declared folds in Redis, read on a connection with short timeouts.

    Attributes:
        fences: Fence of each shard that has state in Redis, according to the last reply, which is kept while Redis is down.
        rejection: Why Redis rejected writes at the last reply; None if it accepted them.
    """

    def __init__(self, settings: Settings) -> None:
        self.fences: dict[ShardKey, int] = {}
        self.rejection: WriteRejection | None = None
        self._settings = settings
        self._redis: Redis | None = None

    async def ask_once(self, tps: Collection[TP]) -> None:
        """Query Redis for the fences in these partitions, and for whether it accepts writes; update the attributes.

        Raises:
            RedisError, OSError: Redis does not answer, or is a replica.
        """
        if self._redis is None:
            # No retry: the caller repeats the request every second, and must learn that this one failed.
            options = {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS, "health_check_interval": 0}
            self._redis = connect(self._settings.redis, retries=0, **options)
        self.rejection = await write_rejection(self._redis)
        if self.rejection == "read-only":
            raise ReadOnlyError("it is a replica")
        wanted = [(fold.name, tp) for fold in self._settings.folds for tp in tps if tp.topic == fold.source]
        if not wanted:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for name, tp in wanted:
                pipe.hget(shard_keys(self._settings.app_id, name, tp.topic, tp.partition).meta, "fence")
            found = await pipe.execute()
        self.fences = {key: int(fence) for key, fence in zip(wanted, found, strict=True) if fence is not None}

    async def close(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()
