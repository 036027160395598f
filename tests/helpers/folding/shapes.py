"""Events and bounds as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent

RUNS = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GROUPS = [b"sa", b"sb", b"sab", b"j1", b"s\xc3\xa9", b"s{x}\n"]

shapes = st.lists(
    st.tuples(
        st.integers(1, 3),  # offsets may be missing in the log
        st.integers(-10, 25),
        st.sampled_from(GROUPS),
        st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 9), max_size=3),
    ),
    max_size=25,
)
bounds_of_a_fold = st.builds(
    Bounds,
    quiet_ms=st.sampled_from([5, 20]),
    hold_ms=st.sampled_from([20, 50, 1_000]),
    max_events=st.sampled_from([0, 1, 4]),
    max_changed=st.sampled_from([2, 4, 10_000]),
    sessions=st.booleans(),
)


def events_after(drawn: Sequence[tuple[int, int, bytes, dict[str, int]]], offset: int = -1, stamp: int = 1_000) -> list[FoldEvent]:
    """Place events behind an offset and a time."""
    events = []
    for step, later, group, names in drawn:
        offset += step
        stamp += later
        events.append(FoldEvent(offset, stamp, group, names))
    return events


widths = st.sampled_from([1, 150])
"""Lengths of changed names: with long ones, a packed group becomes a hash when it gets its third name."""


def widened(events: Sequence[FoldEvent], width: int) -> list[FoldEvent]:
    """Make the changed names of events at least as long as ``width``."""
    return [event._replace(names={name.ljust(width, "_"): value for name, value in event.changed.items()}) for event in events]
