"""Failover of Redis: hooks of ``redis-py`` for a single server and a cluster.

After a failover, the former primary may continue as a replica with open connections: it answers, but rejects writes. A connection
that receives that reply is closed, and the next one resolves the name of the server again, or asks the Sentinels for the primary
(:mod:`streams_app.redis_access.sentinel`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode, ClusterPipeline
from redis.asyncio.retry import Retry
from redis.backoff import AbstractBackoff
from redis.exceptions import ConnectionError as LostConnectionError
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as SilentError

from streams_app.redis_access.request_limit import MAX_REQUESTS

T = TypeVar("T")

REPLY_OF_REPLICA: Final = "READONLY"
REPLIES_OF_NO_PRIMARY: Final = ("NOREPLICAS", REPLY_OF_REPLICA)
"""Error codes of a server that is not the primary, or has too few replicas to accept writes.

They are searched for in the text of an error: redis-py has no class for the first one, and the error of a script may contain the
second one.
"""

CLIENT_ERRORS: Final = (AttributeError, LookupError, RuntimeError, TypeError)
"""Errors of the cluster client while its nodes change, such as ``'NoneType' object has no attribute 'writelines'``."""


def is_no_primary(error: BaseException) -> bool:
    """Return whether an error is the reply of a server that is not the primary, or has too few replicas to accept writes."""
    return isinstance(error, ReadOnlyError | MasterDownError) or (
        isinstance(error, ResponseError) and any(code in str(error) for code in REPLIES_OF_NO_PRIMARY)
    )


def is_from_replica(error: ResponseError) -> bool:
    """Return whether an error is the reply of a replica, so that another server is the primary.

    Too few replicas of a primary are no such error: a client that discovered the nodes again would find the same ones.
    """
    return isinstance(error, ReadOnlyError | MasterDownError) or REPLY_OF_REPLICA in str(error)


class PrimaryRetry(Retry):
    """Retry policy that treats a reply of a server that is not the primary like a lost connection: it reconnects and retries."""

    def __init__(self, backoff: AbstractBackoff, retries: int) -> None:
        super().__init__(backoff, retries, (LostConnectionError, SilentError, OSError, ResponseError))  # type: ignore[arg-type]  # any error

    async def call_with_retry(
        self,
        do: Callable[[], Awaitable[T]],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        return await super().call_with_retry(do, fail, is_retryable or _is_retryable, with_failure_count)


def _is_retryable(error: Exception) -> bool:
    return not isinstance(error, ResponseError) or is_no_primary(error)


NODE_CONNECTIONS: Final = 1_000
"""Number of connections to one node at which redis-py would reject commands. It is never reached: see :class:`FailoverCluster`."""


class FailoverCluster(RedisCluster):
    """Cluster client that survives failovers and restarts of all nodes.

    To discover the nodes of the cluster, it queries both the configured nodes and those that it discovered before. If a command
    fails because a primary has changed, it discovers the nodes again before the next command. Internal errors of redis-py, which
    occur while nodes change, are raised as ``redis.exceptions.ConnectionError``.

    At most :data:`.MAX_REQUESTS` commands to each node run at the same time, so that a node that does not answer delays no commands
    to other nodes; and as many pipelines, each of which has commands for any nodes. Pipelines are counted apart, because a pipeline
    whose commands are redirected runs them one by one.
    """

    def __init__(self, nodes: list[ClusterNode], **options: Any) -> None:
        """Create a client, without connecting; at least one of the configured nodes must run."""
        super().__init__(startup_nodes=nodes, max_connections=NODE_CONNECTIONS, **options)
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_REQUESTS))
        self.pipeline_turns: Final = asyncio.Semaphore(MAX_REQUESTS)
        # The client replaces its startup nodes by discovered addresses, which may be stale after a restart of all nodes.
        self._configured = [(node.host, node.port) for node in nodes]

    async def initialize(self, additional_startup_nodes_info: Any = None, last_failed_node_name: Any = None) -> FailoverCluster:
        nodes = [*(additional_startup_nodes_info or ()), *self._configured]
        with self.rediscovering_nodes():
            await super().initialize(nodes, last_failed_node_name)
        return self

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with self.rediscovering_nodes():
            return await super().execute_command(*args, **options)

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **options: Any) -> Any:
        async with self._turns[target_node.name]:
            return await super()._execute_command(target_node, *args, **options)

    async def aclose(self) -> None:
        """Close all connections, also if the client would discover the nodes again before the next command."""
        await super().aclose()
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> ClusterPipeline:
        del shard_hint
        return _FailoverPipeline(self, transaction)  # type: ignore[abstract]  # redis-py sets that attribute in its constructor

    @contextmanager
    def rediscovering_nodes(self) -> Iterator[None]:
        """Run a command in the ``with`` block. If it fails, perhaps because the cluster changes, the next one discovers the nodes.

        redis-py alone would not always discover them again. For example, a command for all primaries has no key. A former primary
        that is a replica now rejects it without naming the new primary, so redis-py would send it there each time.
        """
        try:
            yield
        except ResponseError as error:
            self._initialize = self._initialize or is_from_replica(error)
            raise
        except CLIENT_ERRORS as error:
            self._initialize = True
            raise LostConnectionError(f"the cluster is changing: {type(error).__name__}: {error}") from error


class _FailoverPipeline(ClusterPipeline):
    async def execute(self, *args: Any, **options: Any) -> Any:
        client: Any = self.cluster_client
        async with client.pipeline_turns:
            with client.rediscovering_nodes():
                return await super().execute(*args, **options)
