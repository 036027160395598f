"""The lag of each fold: how many source offsets are not folded yet, in all partitions, whoever owns them.

A worker that counted its own partitions only would report no lag for partitions without an owner, and none in an outage, when it
has lost its partitions. So each worker reports the lag of the whole consumer group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Committed
from streams_app.delivery.offset_metadata import offsets_of
from streams_app.fold import Fold
from streams_app.folding.store.keys import shard_keys
from streams_app.redis_access.client import WriteRefusal, connect, write_refusal
from streams_app.settings import Settings

ShardKey: TypeAlias = tuple[str, TP]
"""Name of a fold, and a partition of its source."""


READ_MS: Final = 10_000
"""An end that a fetch has named counts for so long after its partition was let go; by then the broker was asked for it."""


@dataclass(slots=True)
class PartitionEnds:
    """The end of each partition, as the broker was asked for it, or as the reader has seen it since."""

    _read: dict[TP, tuple[int, int]] = field(default_factory=dict)

    def combined(
        self, asked: Mapping[TP, int], read: Mapping[TP, int | None], now_ms: int, *, is_answering: bool
    ) -> dict[TP, int]:  # fmt: skip
        """The ends as far as they are known now.

        Args:
            asked: Ends as the broker answered last.
            read: Ends as the last fetch of each partition named them; None for partitions this worker does not read.
            now_ms: Monotonic clock.
            is_answering: Whether the broker answers, so that ``asked`` is young.
        """
        self._read |= {tp: (end, now_ms) for tp, end in read.items() if end is not None}
        if is_answering:
            self._read = {tp: (end, at_ms) for tp, (end, at_ms) in self._read.items() if now_ms - at_ms < READ_MS}
        return {tp: max(end, self._read.get(tp, (0, 0))[0]) for tp, end in asked.items()}


def lags(
    folds: Iterable[Fold], ends: Mapping[TP, int], begins: Mapping[TP, int], committed: Mapping[TP, Committed],
    fences: Mapping[ShardKey, int],
) -> dict[str, int]:  # fmt: skip
    """Source offsets beyond what each fold has folded.

    Args:
        folds: The declared folds.
        ends: End of each partition, as far as it was ever told.
        begins: First offset of each partition.
        committed: Last commit of the group in each partition.
        fences: Highest offset folded of each shard, as last known; a shard that is missing has no state.

    Returns:
        Fold name → offsets.
    """
    return {
        fold.name: sum(
            max(0, end - _next(fold, tp, end, begins, committed, fences)) for tp, end in ends.items() if tp.topic == fold.source
        )
        for fold in folds
    }


def _next(
    fold: Fold, tp: TP, end: int, begins: Mapping[TP, int], committed: Mapping[TP, Committed], fences: Mapping[ShardKey, int]
) -> int:
    """The offset at which the fold would go on if its partition were claimed now."""
    fence = fences.get((fold.name, tp))
    if fence is not None:
        return max(fence + 1, begins.get(tp, 0))
    commit = committed.get(tp)
    mark = None if commit is None else offsets_of(commit, (fold.name,)).get(fold.name)
    if mark is not None:
        return mark.offset
    return end if fold.start == "latest" else begins.get(tp, 0)


SOCKET_SECONDS: Final = 2.0


class StoredFences:
    """The fences of the declared folds.

    Attributes:
        fences: The last answer, which is kept while Redis is away.
        refusal: Why Redis refused writes when it answered last; None: it takes them.
    """

    def __init__(self, settings: Settings) -> None:
        self.fences: dict[ShardKey, int] = {}
        self.refusal: WriteRefusal | None = None
        self._settings = settings
        self._redis: Redis | None = None

    async def ask_once(self, tps: Collection[TP]) -> None:
        """Asks Redis for the fences of these partitions; nothing is changed by it.

        Raises:
            RedisError, OSError: Redis does not answer, or is a replica.
        """
        if self._redis is None:
            # No retry: whoever asks every second wants to know that this one was not answered.
            options = {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS, "health_check_interval": 0}
            self._redis = connect(self._settings.redis, retries=0, **options)
        self.refusal = await write_refusal(self._redis)
        if self.refusal == "read-only":
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
        """Closes the connection."""
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()
