"""How a subscriber is, and its charts."""

from __future__ import annotations

import pytest

from streams_app.console.pages.overview import subscriber_state
from streams_app.console.pages.subscriber import charts_of_subscriber, line_of
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Key, Samples
from streams_app.operations.event_facts import EventAttempts, EventDeadLetter, EventState

NOW = 1_700_000_000_000
SHIP = (("subscriber", "ship"),)


@pytest.mark.parametrize(
    ("values", "state", "word"),
    [
        ({}, "unknown", "not seen"),
        ({("subscriber_waiting_events", SHIP): 0.0}, "ok", "idle"),
        ({("subscriber_waiting_events", SHIP): 3.0}, "ok", "running"),
        ({("subscriber_waiting_events", SHIP): 3.0, ("subscriber_suspended", SHIP): 1.0}, "trouble", "suspended"),
        (
            {("subscriber_waiting_events", SHIP): 3.0, ("waiting_for", (*SHIP, ("what", "redis"))): 1.0,
             ("waiting_for", (*SHIP, ("what", "window"))): 0.0},
            "attention", "waits for redis",
        ),
    ],
)  # fmt: skip
def test_state_has_a_word(values: dict[Key, float], state: str, word: str) -> None:
    assert (state, word) == subscriber_state("ship", [Samples(values)], None)


def test_charts_are_of_this_subscriber_and_all_workers() -> None:
    history = History()
    samples = Samples({})
    for at in range(2):
        samples = Samples(
            {
                ("subscriber_finished_total", (("event", "paid"), *SHIP)): 50.0 * at,
                ("subscriber_finished_total", (("event", "paid"), ("subscriber", "other"))): 900.0 * at,
                ("subscriber_handler_seconds_sum", (("outcome", "done"), *SHIP)): 5.0 * at,
                ("subscriber_handler_seconds_count", (("outcome", "done"), *SHIP)): 50.0 * at,
                ("subscriber_running_events", SHIP): 2.0,
            }
        )
        for worker in ("v", "w"):
            history.add(worker, NOW - (1 - at) * EVERY_MS, samples)
    now = {chart.key: chart.now for chart in charts_of_subscriber("ship", history, [samples, samples], NOW)}

    assert {"finished": 20, "duration": 0.1, "running": 4, "retrying": None, "waiting": None, "oldest": None, "dead": None} == now


def test_time_line_of_an_event_has_its_past_now_and_its_next_attempt() -> None:
    dead_letters = (EventDeadLetter("interrupted", NOW - 5_000, 1, "", is_late=False, is_replayed=True),)
    attempts = EventAttempts(2, 0, False, False, NOW + 3_000, 60_000, 5)
    position = ("t", 0, 7, "id\u202e", "", NOW - 9_000, 0, 8, 8)
    event = EventState("retrying", *position, None, "neither", attempts, "", dead_letters, False)

    found = line_of(event, NOW)

    assert ["written", "rejected", "now", "due", "limit"] == [one.kind for one in found.moments]
    assert [-9_000, -5_000, 0, 3_000, 60_000] == [one.at_ms - NOW for one in found.moments]
    assert "dead letter after 1 attempt: interrupted, replayed since" == found.moments[1].what
    assert ("now: retrying, 2 attempts so far", "attempt 3 is due") == (found.moments[2].what, found.moments[3].what)
    assert (NOW - 9_000, NOW + 60_000, True) == (found.from_ms, found.to_ms, found.moments[4].is_latest)
    assert "\u202e" not in found.event
