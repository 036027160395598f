"""Findings of `check` about live views that need no server."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.finding import Level
from streams_app.live.hub.findings import descriptor_findings, hosts_findings, origin_findings
from streams_app.settings import Settings

PRIVATE = {"name": "news", "kind": "list", "source": "events", "page": "p", "item": "i", "expiry": "1h"}


def settings(origins: list[str], **view: Any) -> Settings:
    return Settings.model_validate({
        "app_id": "app", "live": [PRIVATE | view], "live_server": {"origins": origins, "secret_file": "secret"},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("origins", "view", "level"),
    [
        ([], {}, Level.OK),
        (["https://www.example.com"], {}, Level.OK),
        (["http://localhost:3000"], {}, Level.OK),
        (["http://[::1]:3000"], {}, Level.OK),
        (["http://www.example.com"], {"public": True}, Level.OK),
        (["https://www.example.com", "http://www.example.com"], {}, Level.WARNING),
    ],
)
def test_token_sent_by_an_origin_without_tls_is_a_warning(origins: list[str], view: dict[str, Any], level: Level) -> None:
    (finding,) = origin_findings(settings(origins, **view))

    assert level == finding.level
    assert bool(finding.advice) == (level == Level.WARNING)


def test_missing_list_of_hosts_is_reported_for_public_views_alone() -> None:
    limited = settings([], public=True)
    limited = limited.model_copy(update={"live_server": limited.live_server.model_copy(update={"hosts": ("live.example.com",)})})

    assert [] == hosts_findings(settings([]))
    assert ["live_server.hosts is not set"] == [one.text.partition(":")[0] for one in hosts_findings(settings([], public=True))]
    assert ["live views are served to requests for the hosts live.example.com"] == [one.text for one in hosts_findings(limited)]


@pytest.mark.parametrize(("connections", "descriptors", "warns"), [(1_000, 1_024, True), (1_000, 4_096, False), (50, 1_024, False)])
def test_more_pages_than_file_descriptors_is_a_warning(connections: int, descriptors: int, warns: bool) -> None:
    given = settings([])
    server = given.live_server.model_copy(update={"connections": connections})

    found = descriptor_findings(given.model_copy(update={"live_server": server}), descriptors)

    assert warns == bool(found)
    assert all(one.level == Level.WARNING and one.advice for one in found)
