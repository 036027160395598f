"""When the cluster client discovers its nodes again, and what its end closes."""

from __future__ import annotations

from unittest.mock import AsyncMock, call

import pytest
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError

from streams_app.redis_access.failover import FailoverCluster


@pytest.fixture
def cluster() -> FailoverCluster:
    """Return a client that has discovered its nodes."""
    client = FailoverCluster([ClusterNode("localhost", 1)])
    client._initialize = False
    return client


@pytest.mark.parametrize(
    ("error", "discovers"),
    [
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("READONLY You can't write against a read only replica. script: 1, on @user_script:1."), True),
        (MasterDownError("Link with MASTER is down"), True),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), False),
        (ResponseError("WRONGTYPE"), False),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_reply_of_a_replica_lets_the_client_discover_its_nodes(
    cluster: FailoverCluster, error: ResponseError, *, discovers: bool
) -> None:
    with pytest.raises(type(error)), cluster.rediscovering_nodes():
        raise error

    assert discovers is cluster._initialize


async def test_internal_error_of_the_client_is_a_connection_error(cluster: FailoverCluster) -> None:
    with (
        pytest.raises(RedisConnectionError, match="the cluster is changing: AttributeError: writelines"),
        cluster.rediscovering_nodes(),
    ):
        raise AttributeError("writelines")

    assert cluster._initialize


async def test_client_that_would_discover_its_nodes_closes_its_connections(
    cluster: FailoverCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = AsyncMock()
    monkeypatch.setattr(type(cluster.nodes_manager), "aclose", closed)
    cluster._initialize = True
    await cluster.aclose()

    assert [call(), call("startup_nodes")] == closed.mock_calls
