"""Findings of `check` about one Redis server, from its reply to ``INFO``."""

from __future__ import annotations

import pytest

from streams_app.checking.finding import Level
from streams_app.checking.redis import server_findings
from streams_app.redis_access.request_limit import PROCESS_CONNECTIONS


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
