"""Whether Redis takes writes, asked without writing anything.

It stands alone as it is neither of a fold nor of a subscriber: a worker whose processors happen to write nothing at the moment, or
that goes on without Redis, finds out that it is full or read-only, too.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final, Literal

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

WriteRefusal = Literal["memory", "read-only", "other"]
WRITE_REFUSALS: Final[tuple[WriteRefusal, ...]] = ("memory", "read-only", "other")
"""Why Redis refuses writes: it is full; it is a replica; anything else it says, such as that it cannot save its snapshot."""

_SCRIPT: Final = (files("streams_app.delivery") / "lua" / "takes_writes.lua").read_text("utf-8")


async def write_refusal(redis: Redis) -> WriteRefusal | None:
    """Why Redis refuses writes; None: it takes them. Of a cluster every primary is asked.

    Raises:
        RedisError, OSError: Redis does not answer.
    """
    client: Any = redis
    target = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(client, RedisCluster) else {}
    try:
        await client.execute_command("EVAL", _SCRIPT, 0, **target)
    except OutOfMemoryError:
        return "memory"
    except ReadOnlyError:
        return "read-only"
    except ResponseError:
        return "other"
    return None
