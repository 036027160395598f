"""The state in the heading of the page of a live view: that of its contents, by the clocks of its partitions."""

from __future__ import annotations

import pytest

from streams_app.console.pages.live import ViewPages, heading_of
from streams_app.console.pages.model import State
from streams_app.console.reading.console_reader import Missing
from streams_app.console.reading.samples import Samples
from streams_app.settings import LiveView

VIEW = LiveView(name="supporters", kind="count", source="s", page="p", item="i", expiry="1h", public=True)
PRESENCE = LiveView(name="here", kind="presence", expiry="60s", public=True)
LAGGING = Samples({("live_lag_records", (("view", "supporters"),)): 5_000.0})
READ = Samples({("live_lag_records", (("view", "supporters"),)): 0.0})


def contents(state: State, word: str) -> ViewPages:
    return ViewPages(state, word, "", 0, [], 0, is_whole=True)


@pytest.mark.parametrize(
    ("state", "word", "heading"),
    [
        ("ok", "ok", ("ok", "current")),
        ("trouble", "behind", ("trouble", "behind")),
        ("attention", "incomplete", ("attention", "incomplete")),
        ("attention", "reading", ("attention", "reading")),
    ],
)
@pytest.mark.parametrize("samples", [LAGGING, READ], ids=["lagging", "read"])
def test_heading_has_the_state_of_the_contents_whatever_the_lag(
    state: State, word: str, heading: tuple[State, str], samples: Samples
) -> None:
    assert heading == heading_of(VIEW, contents(state, word), [samples], 1.0)


@pytest.mark.parametrize(("samples", "heading"), [(LAGGING, ("attention", "lagging")), (READ, ("ok", "current"))])
def test_heading_is_by_the_lag_while_the_contents_cannot_be_read(samples: Samples, heading: tuple[State, str]) -> None:
    missing = Missing("its pages", "Redis does not answer", 0)

    assert heading == heading_of(VIEW, missing, [samples], 1.0)
    assert ("unknown", "not seen") == heading_of(PRESENCE, missing, [samples], None)
