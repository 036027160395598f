"""Whether a worker is alive and ready, and the reasons if it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams_app.health.status import LIVE_MS, Status, cause_of


def test_new_worker_is_not_ready_because_it_is_starting() -> None:
    assert ["the worker is starting"] == Status().ready_reasons()


def test_worker_without_reasons_is_ready() -> None:
    status = Status()
    status.clear("start")

    assert [] == status.ready_reasons()


def test_later_reason_about_the_same_subject_replaces_the_former() -> None:
    status = Status()
    status.clear("start")
    status.set_not_ready("redis", "Redis is away")
    status.set_not_ready("topic-0", "claiming")
    status.set_not_ready("redis", "Redis is loading")

    assert ["Redis is loading", "claiming"] == status.ready_reasons()


def test_clearing_an_unset_reason_changes_nothing() -> None:
    status = Status()
    status.clear("redis")

    assert ["the worker is starting"] == status.ready_reasons()


def test_ready_reasons_returns_a_copy() -> None:
    status = Status()
    status.ready_reasons().clear()

    assert ["the worker is starting"] == status.ready_reasons()


def test_worker_is_live_before_its_first_beat() -> None:
    assert Status().is_live(10**9)


def test_topic_without_acknowledgements_is_awaited_until_it_acknowledges() -> None:
    status = Status()
    status.clear("start")
    status.set_topic("one", "topic 'one' does not exist")
    status.set_topic("other", "topic 'other' does not exist")
    status.set_topic("other", None)
    before = (status.is_waiting_for("producer:one"), status.ready_reasons())
    status.set_topic("one", None)

    assert (True, ["topic 'one' does not exist"]) == before
    assert (False, []) == (status.is_waiting_for("producer:one"), status.ready_reasons())


@pytest.mark.parametrize(("after_ms", "expected"), [(0, True), (LIVE_MS - 1, True), (LIVE_MS, False), (LIVE_MS + 1, False)])
def test_worker_is_live_for_less_than_thirty_seconds_after_a_beat(after_ms: int, expected: bool) -> None:
    status = Status()
    status.beat(5_000)

    assert expected is status.is_live(5_000 + after_ms)


def test_new_beat_makes_a_worker_live() -> None:
    status = Status()
    status.beat(0)
    status.beat(LIVE_MS)

    assert status.is_live(LIVE_MS + 1)


@pytest.mark.parametrize(
    ("about", "cause"),
    [("start", "start"), ("kafka-away", "kafka"), ("source:a:b", "topic"), ("producer:t", "topic"),
     ("redis-memory", "redis-memory"), ("subscriber:ship", "subscriber"), ("something new", "other")],
)  # fmt: skip
def test_reason_maps_to_one_of_few_causes(about: str, cause: str) -> None:
    status = Status()
    status.clear("start")
    status.set_not_ready(about, "why")

    assert {cause} == status.causes(0)
    status.clear(about)
    assert set() == status.causes(0)


def test_every_reason_in_the_code_has_its_own_cause() -> None:
    text = "".join(path.read_text("utf-8") for path in (Path(__file__).parents[3] / "streams_app").rglob("*.py"))
    given = set(re.findall(r'set_not_ready\(\s*f?"([\w-]+)', text)) | {"claim", "kafka-away", "redis-away"}

    assert len(given) > 6
    assert "other" not in {cause_of(about) for about in given}


def test_hanging_main_loop_is_a_cause() -> None:
    status = Status()
    status.clear("start")
    status.beat(0)

    assert (set(), {"loop"}) == (status.causes(LIVE_MS - 1), status.causes(LIVE_MS))
