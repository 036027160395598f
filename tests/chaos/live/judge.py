"""The states that browsers may have received in a chaos run of live views, derived from the produced events alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.chaos.live.clients import Shown

EXPIRY_MS: Final = 15_000
SHOW: Final = 10
GONE: Final = "gone"

RECENT_MS: Final = 5_000
"""The run reports the share of the states without a label that are older than this."""

SETTLED_MS: Final = 2_000
"""Time for which an outdated state may be shown: a tick of the worker, a poll of the hub, and the transfer to the browser."""

OLDEST_MS: Final = 12_000
"""An older state without a label is wrong: a view is ``behind`` when its clock is 10 s old, and hubs check once a second. The hub's
last beat is a time before which the state was not sent, so the delay of a busy machine between hub and browser does not count."""


@dataclass(slots=True)
class Produced:
    """An event of a page.

    Attributes:
        item: Item of the page.
        time_ms: Timestamp of the record.
        is_gone: Whether it removes the item.
        sent_ms: Time before which it was not in the log.
        acked_ms: Time from which it was in the log; None if it is unknown whether it is in the log.
        offset: Offset in the partition of its page.
    """

    item: str
    time_ms: int
    is_gone: bool
    sent_ms: int
    acked_ms: int | None = None
    offset: int = -1


class Content(NamedTuple):
    """The contents of a page in one view: number of items, and the newest items."""

    size: int
    items: tuple[tuple[str, int], ...]


def content_of(events: Sequence[Produced], clock_ms: int) -> Content:
    """Return the contents of a view after these events, at this time."""
    items: dict[str, int] = {}
    for event in events:
        if event.is_gone:
            items.pop(event.item, None)
        else:
            items[event.item] = max(event.time_ms, items.get(event.item, 0))
    left = sorted(((time_ms, item) for item, time_ms in items.items() if time_ms + EXPIRY_MS > clock_ms), reverse=True)
    return Content(len(left), tuple((item, time_ms) for time_ms, item in left[:SHOW]))


@dataclass
class Judge:
    """Compares the received states with the events.

    Attributes:
        wrong: States that were never valid, or that were old and had no label.
        ages_ms: Age of each state without a label: the time since it was last valid.
        labelled: Label → number of messages with it.
        excused: Pages with an event of which it is unknown whether it is in the log.
    """

    pages: dict[str, list[Produced]]
    wrong: list[str] = field(default_factory=list)
    ages_ms: list[int] = field(default_factory=list)
    labelled: dict[str, int] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._age_of_content: dict[tuple[str, str, Content, int], int | None] = {}
        for page, events in self.pages.items():
            if any(event.acked_ms is None for event in events):
                self.excused.add(page)
            events.sort(key=lambda event: event.offset)

    @property
    def share_of_old(self) -> float:
        """Return the share of the states without a label that were older than they should be."""
        return sum(age_ms > RECENT_MS for age_ms in self.ages_ms) / max(1, len(self.ages_ms))

    def require(self, least: int) -> None:
        """Report a violation if too few states were judged.

        Args:
            least: Minimum number of judged states without a label.
        """
        if len(self.ages_ms) < least:
            why = f"{len(self.excused)} of {len(self.pages)} pages have events that may or may not be in the log"
            self.wrong.append(
                f"only {len(self.ages_ms)} states were judged, at least {least} are required: {why}, labelled {self.labelled}"
            )

    def judge(self, shown: Shown) -> None:
        """Judge one message."""
        state, name = shown.state, shown.state["state"]
        if name != "ok":
            self.labelled[name] = self.labelled.get(name, 0) + 1
        if name == "reading":
            if {"count", "items", "people"} & state.keys():
                self.wrong.append(f"values while {shown.page} is rebuilt: {state}")
            return
        if state["view"] == "visitors" or shown.page in self.excused:
            return
        if name == "incomplete":
            self.wrong.append(f"{shown.page} is incomplete although nothing was removed: {state}")
            return
        content = Content(state["count"], tuple((item["item"], item["time_ms"]) for item in state.get("items", ())))
        at_ms = shown.at_ms // 100 * 100 + 100
        key = shown.page, state["view"], content, at_ms
        if key not in self._age_of_content:
            self._age_of_content[key] = self._age_ms(shown.page, state["view"], content, at_ms)
        age_ms = self._age_of_content[key]
        if age_ms is None:
            self.wrong.append(f"{shown.page} of {state['view']} never had the state that is shown at {at_ms}: {state}")
        elif name == "ok":
            self.ages_ms.append(age_ms)
            sent_age_ms = age_ms - (0 if shown.beat_ms is None else max(0, shown.at_ms - shown.beat_ms))
            if sent_age_ms > OLDEST_MS:
                self.wrong.append(
                    f"{shown.page} of {state['view']} was last valid {sent_age_ms} ms before it was sent, and has no label: {state}"
                )

    def _age_ms(self, page: str, view: str, content: Content, at_ms: int) -> int | None:
        events = self.pages.get(page, [])
        for count, until_ms in self._prefixes(events, at_ms):
            for clock_ms in self._clocks(events[:count], at_ms):
                found = content_of(events[:count], clock_ms)
                if found.size == content.size and (view != "news" or found.items == content.items):
                    return max(0, at_ms - min(until_ms, self._end_ms(events[:count], clock_ms)))
        return None

    @staticmethod
    def _prefixes(events: Sequence[Produced], at_ms: int) -> Iterator[tuple[int, int]]:
        """Yield the possible numbers of events, highest first, with the time at which each was last valid."""
        longest = bisect_left([event.sent_ms for event in events], at_ms)
        for count in range(longest, -1, -1):
            yield count, min(at_ms, (events[count].acked_ms or at_ms) if count < len(events) else at_ms)

    @staticmethod
    def _clocks(events: Sequence[Produced], until_ms: int) -> Iterator[int]:
        """Yield the times at which an item leaves, newest first; the contents do not change between them.

        Unread events may have been sent before the newest of these times: while Redis is full, items leave and no items are added.
        """
        yield until_ms
        ends = sorted({event.time_ms + EXPIRY_MS for event in events if event.time_ms + EXPIRY_MS <= until_ms}, reverse=True)
        for end_ms in ends:
            yield end_ms - 1

    @staticmethod
    def _end_ms(events: Sequence[Produced], clock_ms: int) -> int:
        """Return the time until which a view keeps its contents of a given time."""
        return min((end for event in events if (end := event.time_ms + EXPIRY_MS) > clock_ms), default=2**62)


def differing(latest: dict[str, Shown], page: str, events: Sequence[Produced], at_ms: int, here: int) -> list[str]:
    """Return the states that a browser shows at the end and that are neither valid nor were valid just before.

    Args:
        latest: View → its state in the browser.
        page: Page of the browser.
        events: Events of the page, in the order of the log.
        at_ms: Current time.
        here: Number of browsers that have the page open.
    """
    found: list[str] = []
    ends = (end for event in events if at_ms - SETTLED_MS <= (end := event.time_ms + EXPIRY_MS) <= at_ms)
    expected = [content_of(events, clock_ms) for clock_ms in (at_ms, *(end - 1 for end in ends))]
    for view, shown in latest.items():
        state: dict[str, Any] = shown.state
        items = tuple((item["item"], item["time_ms"]) for item in state.get("items", ()))
        fits = (
            here == state.get("count")
            if view == "visitors"
            else any(one.size == state.get("count") and (view != "news" or one.items == items) for one in expected)
        )
        if state["state"] != "ok" or not fits:
            found.append(f"{page} shows {view} as {state}, {here} browsers have it open, expected {expected[0]}")
    return found
