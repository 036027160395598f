"""The format of a worker's log, and which lines are suppressed."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import group_coordinator

from streams_app import Fold
from streams_app.delivery.batch import TP
from streams_app.folding.agents.context import report_rejected_events
from streams_app.health.metrics import Metrics
from streams_app.logs import EVERY_MS, JsonFormatter, LineFormatter, RepeatFilter, hold_back_libraries
from streams_app.settings import Settings
from tests.helpers.manual_clock import ManualClock


def record(
    message: str, *args: Any, name: str = "streams_app.folding.shard.shard", level: int = logging.WARNING, **more: Any
) -> logging.LogRecord:
    made = logging.LogRecord(name, level, __file__, 1, message, args, None)
    vars(made).update(more)
    return made


def raised(error: Exception) -> Any:
    try:
        raise error
    except type(error):
        return sys.exc_info()


# Suppressed lines


def test_repeated_library_message_is_logged_once_a_minute_with_the_suppressed_count() -> None:
    clock = ManualClock()
    repeat_filter = RepeatFilter(clock)
    logged = []
    for number in range(121):
        each = record(
            "Unable connect to node with id %s: %s", number, f"port {9000 + number}", name="aiokafka", level=logging.ERROR
        )
        if repeat_filter.filter(each):
            logged.append(each.getMessage())
        clock.advance_ms(EVERY_MS // 60)

    assert [
        "Unable connect to node with id 0: port 9000",
        "Unable connect to node with id 60: port 9060 (and 59 more like it since the last one)",
        "Unable connect to node with id 120: port 9120 (and 59 more like it since the last one)",
    ] == logged


def test_library_message_without_an_exception_shows_none() -> None:
    crashed = record("Crashed reason=%r", "a topic was made again", name="streams_app.worker.faust_app")
    crashed.exc_info = (None, None, None)
    RepeatFilter(ManualClock()).filter(crashed)

    assert [] == [line for line in LineFormatter().format(crashed).splitlines() if "NoneType" in line]


def test_routine_rebalance_message_is_no_warning() -> None:
    repeat_filter = RepeatFilter(ManualClock())
    name = "aiokafka.consumer.group_coordinator"
    ordinary = record("Heartbeat failed for group %s because it is rebalancing", "shop.ship", name=name)
    expelled = record("Heartbeat failed: local member_id was not recognized; resetting and re-joining group", name=name)

    assert [False, True] == [repeat_filter.filter(ordinary), repeat_filter.filter(expelled)]
    assert ordinary.msg in inspect.getsource(group_coordinator)


def test_message_with_another_cause_is_logged_at_once() -> None:
    repeat_filter = RepeatFilter(ManualClock())
    causes = ["Connection refused", "No route to host", "Connection refused"]

    assert [True, True, False] == [
        repeat_filter.filter(record("Unable connect: %s", cause, name="aiokafka.conn")) for cause in causes
    ]


@pytest.mark.parametrize("name", ["aiokafka.conn", "faust.transport", "mode.services", "asyncio"])
def test_every_flooding_library_is_rate_limited(name: str) -> None:
    repeat_filter = RepeatFilter(ManualClock())

    assert [True, False] == [repeat_filter.filter(record("again", name=name)) for _ in range(2)]


@pytest.mark.parametrize(
    ("name", "level"), [("streams_app.worker.watchdog", logging.WARNING), ("users", logging.ERROR), ("aiokafka", logging.DEBUG)]
)
def test_own_and_user_messages_are_not_rate_limited(name: str, level: int) -> None:
    repeat_filter = RepeatFilter(ManualClock())

    assert [True, True] == [repeat_filter.filter(record("again", name=name, level=level)) for _ in range(2)]


def test_every_handler_of_the_process_rate_limits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    hold_back_libraries()
    hold_back_libraries()

    assert [RepeatFilter] == [type(each) for each in handler.filters]


# Lines


def test_message_is_one_line() -> None:
    line = LineFormatter().format(record("offsets:\n  a\n  b", name="aiokafka"))

    assert line.endswith("WARNING aiokafka offsets: |   a |   b")


def test_partitions_are_written_in_the_project_notation() -> None:
    place = TopicPartition("load", 2)

    assert (
        LineFormatter()
        .format(record("failed: %s and %r", place, TP("load", 3), name="aiokafka"))
        .endswith("failed: load-2 and load-3")
    )


def test_library_error_is_one_line() -> None:
    line = LineFormatter().format(record("failed", name="aiokafka", exc_info=raised(ValueError("a\nb"))))

    assert line.endswith("WARNING aiokafka failed error=ValueError('a | b')")


def test_internal_failure_keeps_its_traceback() -> None:
    assert "Traceback" in LineFormatter().format(record("internal failure", exc_info=raised(ValueError("a"))))


def test_json_line_has_time_level_logger_and_message() -> None:
    line = json.loads(JsonFormatter().format(record("claimed", created=1_700_000_000.25)))

    assert line == {
        "time": "2023-11-14T22:13:20.250+00:00", "level": "WARNING",
        "logger": "streams_app.folding.shard.shard", "message": "claimed",
    }  # fmt: skip


def test_named_message_value_is_a_field() -> None:
    line = json.loads(
        JsonFormatter().format(record("%s is done fold=%s source=%s-%d fence=%d error=%r", "it", "f", "t", 3, 77, "a b"))
    )

    assert ("f", "t-3", 77, "'a b'") == (line["fold"], line["source"], line["fence"], line["error"])
    assert "it is done fold=f source=t-3 fence=77 error='a b'" == line["message"]


def test_extra_fields_are_fields() -> None:
    assert "u" == json.loads(JsonFormatter().format(record("m", user="u")))["user"]


def test_extra_field_does_not_replace_a_standard_one() -> None:
    assert "WARNING" == json.loads(JsonFormatter().format(record("m level=%s", "none")))["level"]


def test_traceback_is_a_field_of_one_line() -> None:
    line = JsonFormatter().format(record("internal failure", exc_info=raised(ValueError("a"))))

    assert 1 == len(line.splitlines())
    assert "ValueError: a" in json.loads(line)["traceback"]


@pytest.mark.parametrize("value", ["\ud800", 2**80, float("inf"), b"bytes", object])
def test_anything_can_be_logged_as_json(value: object) -> None:
    assert 1 == len(JsonFormatter().format(record("m value=%s", value, other=value)).splitlines())


# Rejected settings


def test_rejected_events_are_reported_once_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    fold = Fold(name="f", source="s", dead_letters="dead", group_key="a", changed="m", quiet_period="1s")
    metrics = Metrics(Settings(app_id="a", folds=(fold,)))
    for reason in ("not-json", "tombstone", "not-json"):
        metrics.rejected("f", reason)
    report_rejected_events([fold], metrics)
    report_rejected_events([fold], metrics)

    assert ["3 events rejected in the last minute (2 not-json, 1 tombstone) fold=f dead_letters=dead"] == caplog.messages
