"""Backoff during an outage, and its log lines.

One line when the error changes, one every ten minutes while it lasts, so that today's log shows an outage that began last week, and
one when it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from streams_app.backoff import Backoff
from streams_app.clock import Clock, SystemClock
from streams_app.errors import ConfigurationError

logger = logging.getLogger(__name__)

REPEAT_AFTER_MS: Final = 600_000
"""Time after which a lasting outage is logged again."""


class OutageReporter:
    """Outage of one dependency with several users; it ends once the dependency works for every user that failed."""

    def __init__(self, what: str, on_change: Callable[[bool], None] = lambda _: None, clock: Clock | None = None) -> None:
        """Create a reporter without an outage.

        Args:
            what: Name of the dependency, for messages.
            on_change: Called with whether the dependency works.
            clock: Clock for the duration of an outage; None: that of this machine.
        """
        self._what = what
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._fault: str | None = None
        self._began_ms = 0
        self._logged_ms = 0
        self._is_for_operator = False
        self._waiting: dict[Hashable, Backoff] = {}

    @property
    def fault(self) -> str | None:
        """The last reported error; None if the dependency works."""
        return self._fault

    @property
    def waits_for_operator(self) -> bool:
        """Whether only an operator can end the outage, by changing a setting or running a command."""
        return self._fault is not None and self._is_for_operator

    def failed(self, error: BaseException, who: Hashable = None) -> int:
        """Record a failure.

        Returns:
            Milliseconds that ``who`` has to wait: 200, doubled with each failure in a row, at most 10 000.
        """
        self._on_change(False)
        fault = str(error) or repr(error)
        self._is_for_operator = isinstance(error, ConfigurationError)
        if self._fault is None:
            self._began_ms = self._clock.monotonic_ms()
        if fault != self._fault:
            logger.warning("%s does not work, waiting for it error=%s", self._what, fault)
            self._fault, self._logged_ms = fault, self._clock.monotonic_ms()
        elif (now_ms := self._clock.monotonic_ms()) - self._logged_ms >= REPEAT_AFTER_MS:
            lasted_seconds = (now_ms - self._began_ms) // 1000
            logger.warning("%s still does not work lasted_seconds=%d error=%s", self._what, lasted_seconds, fault)
            self._logged_ms = now_ms
        backoff = self._waiting.setdefault(who, Backoff(first_seconds=0.2, longest_seconds=10.0))
        return round(1000 * backoff.failed())

    def succeeded(self, who: Hashable = None) -> None:
        """Record a success of one user."""
        self.forget(who)
        if self._waiting:
            return
        self._on_change(True)
        if self._fault is not None:
            logger.info("%s works again", self._what)
            self._fault = None

    def forget(self, who: Hashable) -> None:
        """Forget a user that does not need the dependency any more; that is no success."""
        self._waiting.pop(who, None)
