"""Test kit for live views: send events, advance a virtual clock, check the content of a page. It needs neither Kafka nor Redis.

The kit applies events with the code of the worker. The items are in memory, in :mod:`streams_app.live.core.model`; integration
tests compare this module with the worker's scripts on a real Redis.

::

    view = LiveView(name="news", kind="list", source="news", page="project", item="id", expiry="24h", public=True)
    kit = ViewTester(view)
    kit.send({"project": 7, "id": "n1", "title": "Hello"})
    assert kit.shown("7").count == 1
    kit.advance("24h")
    assert kit.shown("7").count == 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from streams_app.errors import BadEventError
from streams_app.exact_json import encode
from streams_app.formatting import milliseconds, parse_duration
from streams_app.live.core.model import contents_by_page, shard_page
from streams_app.live.core.record_effects import TYPE_RECORD_HEADER, Put, Removal, ViewRule
from streams_app.live.core.state import EMPTY_PAGE, ShardHead, ViewState, merged
from streams_app.settings import Limits, LiveView
from streams_app.testing.folds import START_MS, DeadLetter


@dataclass(frozen=True, slots=True)
class SentEvent:
    """Record of an event, with the attributes of an aiokafka record that the code of the worker reads."""

    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = field(default=())


class ViewTester:
    """Applies the events of one partition to one live view under a virtual clock, like a worker that has caught up.

    Attributes:
        now_ms: Current time of the virtual wall clock, in ms since 1970.
        dead_letters: All events that were rejected so far, in the order in which they were sent.
    """

    def __init__(self, view: LiveView, *, start_ms: int = START_MS, limits: Limits | None = None) -> None:
        """Create an empty view at ``start_ms``.

        Args:
            view: The declaration under test, a view of a topic.
            start_ms: Initial time of the virtual wall clock, in ms since 1970.
            limits: Replaces the settings ``[limits]``; None: their defaults.

        Raises:
            ValueError: The view is a presence view, which has no events.
        """
        if not view.is_of_topic:
            raise ValueError(f"live view {view.name!r} is a presence view, which takes no events")
        self.now_ms = start_ms
        self.dead_letters: list[DeadLetter] = []
        self._view = view
        self._rule = ViewRule(view, (limits or Limits()).value_bytes)
        self._meant: list[Put | Removal | None] = []

    def send(self, value: Any, *, type: str | None = None, at_ms: int | None = None) -> Put | Removal | None:  # as in ce_type
        """Produce one event to the topic of the view. A rejected event is added to :attr:`dead_letters`.

        Args:
            value: Value of the record: bytes or None are sent unchanged, other objects as JSON.
            type: Header ``ce_type``, to which conditions refer as ``@type``; None: no header.
            at_ms: Record timestamp, in ms since 1970; None: now.

        Returns:
            The effect of the event on the view; None if the view ignores the event or the event was rejected.
        """
        raw = value if value is None or isinstance(value, bytes) else encode(value)
        headers = () if type is None else ((TYPE_RECORD_HEADER, type.encode()),)
        offset = len(self._meant)
        sent = SentEvent(offset, self.now_ms if at_ms is None else at_ms, raw, headers=headers)
        effect: Put | Removal | None = None
        try:
            effect = self._rule.effect_of(0, sent, self.now_ms)
        except BadEventError as error:
            self.dead_letters.append(DeadLetter(None, raw, error.reason, error.detail))
        self._meant.append(effect)
        return effect

    def advance(self, by: str | timedelta) -> None:
        """Advance the virtual clock by a duration, after which more items of the view may have expired."""
        self.now_ms += milliseconds(parse_duration(by))

    def shown(self, page: str) -> ViewState:
        """Return the state of a page at the current time of the virtual clock, as browsers would receive it."""
        view = self._view
        content = contents_by_page(self._meant, self.now_ms, view.expiry_ms, view.keeps).get(page)
        one = EMPTY_PAGE if content is None else shard_page(content, view.show if view.kind == "list" else 0)
        head = ShardHead("kit", "0", len(self._meant) - 1, self.now_ms, is_reading=False, whole_ms=0, partitions=1)
        return merged(view, [head], [one], self.now_ms)
