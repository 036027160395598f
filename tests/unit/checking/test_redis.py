"""Findings of `check` about Redis, from its replies."""

from __future__ import annotations

import pytest
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from streams_app.checking.redis import RedisFacts, redis_findings, server_findings
from streams_app.delivery.clocks import SKEW_MS
from streams_app.errors import TryAgainError
from streams_app.finding import Level
from streams_app.redis_access.request_limit import PROCESS_CONNECTIONS
from streams_app.settings import Settings

SETTINGS = Settings.model_validate({"app_id": "a", "events": {"catalogue": "m:c"}})


@pytest.mark.parametrize(
    ("used", "level"), [(1, Level.OK), (100 - PROCESS_CONNECTIONS, Level.OK), (101 - PROCESS_CONNECTIONS, Level.WARNING)]
)
def test_server_with_too_few_free_clients_for_a_worker_is_a_warning(used: int, level: Level) -> None:
    found = server_findings("host:1", {"redis_version": "7.2.0", "connected_clients": used, "maxclients": 100})
    (finding,) = (one for one in found if "maxclients" in one.text)

    assert (level, f"{used} of 100 clients are connected (maxclients)") == (finding.level, finding.text)
    assert bool(finding.advice) == (level == Level.WARNING)


def test_server_that_does_not_report_its_maximum_of_clients_is_no_finding() -> None:
    assert [] == [one for one in server_findings("host:1", {"redis_version": "7.2.0"}) if "clients" in one.text]


@pytest.mark.parametrize(
    ("skew_ms", "level"),
    [(0, Level.OK), (-1_000, Level.OK), (1_001, Level.WARNING), (SKEW_MS, Level.WARNING), (-SKEW_MS - 1, Level.ERROR)],
)
def test_clock_skew_is_an_error_once_workers_would_not_follow_redis(skew_ms: int, level: Level) -> None:
    (finding,) = redis_findings(SETTINGS, RedisFacts(skew_ms=skew_ms))

    assert (level, f"{abs(skew_ms)} ms apart" in finding.text) == (finding.level, True)


@pytest.mark.parametrize(
    ("rejection", "text"),
    [
        (None, "Redis can be written to"),
        (OutOfMemoryError("m"), "Redis is full: m"),
        (ReadOnlyError("r"), "Redis cannot be written to: r"),
        (ResponseError("e"), "Redis refuses a write: e"),
    ],
)
def test_rejected_write_is_named_by_its_kind(rejection: ResponseError | None, text: str) -> None:
    assert [text] == [one.text for one in redis_findings(SETTINGS, RedisFacts(is_probed=True, rejection=rejection))]


def test_findings_of_redis_end_with_its_fault() -> None:
    facts = RedisFacts(TryAgainError("cannot reach Redis"), "start it", servers=NoPermissionError("no INFO"))
    denied, away = redis_findings(SETTINGS, facts)

    assert (Level.WARNING, "grant its user +info; a worker runs without it") == (denied.level, denied.advice)
    assert (Level.ERROR, "cannot reach Redis", "start it", True) == (away.level, away.text, away.advice, away.is_away)
