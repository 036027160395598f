"""How a subscriber is, and its charts."""

from __future__ import annotations

import pytest

from streams_app.console.pages.overview import subscriber_state
from streams_app.console.pages.subscriber import charts_of_subscriber
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Key, Samples

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
