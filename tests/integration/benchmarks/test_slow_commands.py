"""The report of a benchmark about slow scripts, on a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from benchmarks.servers import Servers
from benchmarks.standstill import Standstills
from tests.conftest import RedisServer

BUSY = "local sum = 0 for i = 1, tonumber(ARGV[1]) do sum = sum + i % 7 end"


class OneStandstill(Standstills):
    """One standstill of the machine, of a given length."""

    def __init__(self, longest_ms: float | None) -> None:
        super().__init__([])
        self._longest_ms = longest_ms

    def longest_ms(self, begin: float, end: float) -> float | None:
        assert 1 < end - begin < 20
        return self._longest_ms


@pytest.mark.parametrize(
    ("still_ms", "explained", "longest"), [(None, 0, None), (0.0, 0, 0.0), (5.0, 0, 5.0), (1_000.0, 1, 1_000.0)]
)
def test_slow_script_is_shown_beside_the_stalls_of_the_machine(
    redis_server: RedisServer, still_ms: float | None, explained: int, longest: float | None
) -> None:
    servers = Servers("", "", None, redis_server.url, "", None, OneStandstill(still_ms))
    turns = 1_000_000
    with redis.Redis.from_url(redis_server.url) as client:
        servers.slow_commands()
        found: dict[str, Any] = {"longest_ms": 0}
        while found["longest_ms"] < 30:  # a standstill of 5 ms would explain less than 25
            client.eval(BUSY, 0, turns)
            found, turns = servers.slow_commands(), turns * 2

    assert 1 == found["over_20_ms"]
    assert 20 <= found["longest_ms"]
    assert "EVAL" == found["longest"]
    assert (explained, longest) == (found["of_them_by_a_standstill"], found["longest_standstill_ms"])
    assert {"over_20_ms": 0, "longest_ms": 0} == servers.slow_commands()
