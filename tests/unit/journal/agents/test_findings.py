"""Findings of `check` about journals that need no server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from streams_app.finding import Level
from streams_app.journal.agents.findings import room_finding, source_findings
from streams_app.settings import JournalSettings

JOURNAL = JournalSettings(name="accounts", source="events", key="id", keep="2d", max_bytes=8_000_000)
MASTER: dict[str, Any] = {"role": "master", "maxmemory": 10_000_000, "total_system_memory": 10**9}


@pytest.mark.parametrize(
    ("servers", "level"),
    [
        ([MASTER], Level.OK),
        ([MASTER | {"maxmemory": 9_999_999}], Level.WARNING),
        ([MASTER | {"maxmemory": 5_000_000}] * 2, Level.OK),
        ([MASTER | {"maxmemory": 5_000_000}, MASTER | {"role": "slave"}], Level.WARNING),
        ([MASTER | {"maxmemory": 0}], Level.OK),
        ([MASTER | {"maxmemory": 0, "total_system_memory": 9_000_000}], Level.WARNING),
        ([{}], Level.OK),
    ],
    ids=["enough", "too little", "of two servers", "of which one is a replica", "of the machine", "small machine", "unknown"],
)
def test_redis_must_have_room_for_max_bytes(servers: list[Mapping[str, Any]], level: Level) -> None:
    finding = room_finding([JOURNAL], servers)

    assert level == finding.level
    assert bool(finding.advice) == (level == Level.WARNING)


def test_all_journals_share_one_redis() -> None:
    assert Level.WARNING == room_finding([JOURNAL, JOURNAL], [MASTER]).level


@pytest.mark.parametrize(
    ("config", "warnings"),
    [
        ({"retention.ms": "172800000"}, 0),
        ({"retention.ms": "-1"}, 0),
        ({"retention.ms": "172799999"}, 1),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000"}, 2),
        ({}, 0),
    ],
)
def test_source_must_retain_records_as_long_as_the_journal(config: Mapping[str, str], warnings: int) -> None:
    found = source_findings(JOURNAL, config, 8)

    assert warnings == sum(one.level is Level.WARNING and bool(one.advice) for one in found)
    assert warnings > 0 or [Level.OK] == [one.level for one in found]


@pytest.mark.parametrize(("partitions", "warnings"), [(8, 0), (9, 1), (1_000, 1)])
def test_share_of_a_partition_must_hold_more_than_a_few_events(partitions: int, warnings: int) -> None:
    found = [one for one in source_findings(JOURNAL, {}, partitions) if one.level is Level.WARNING]

    assert warnings == len(found)
    assert all(f"max_bytes = {partitions}000000 or more" in one.advice for one in found)
