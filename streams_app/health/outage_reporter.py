"""How long to wait for something that fails, and what to say.

One line when the fault changes, one every ten minutes while it lasts, so that today's log shows what began last week, and one when
it ends.
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
"""How long a fault lasts until it is logged once more."""


class OutageReporter:
    """The patience of all who need one and the same thing, which works again once it works for everybody who had waited."""

    def __init__(self, what: str, tell: Callable[[bool], None] = lambda _: None, clock: Clock | None = None) -> None:
        """Nothing has failed yet.

        Args:
            what: Name of the thing, for people.
            tell: Called with whether the thing works.
            clock: What tells how long a fault has lasted; None: that of this machine.
        """
        self._what = what
        self._tell = tell
        self._clock = clock or SystemClock()
        self._fault: str | None = None
        self._began_ms = 0
        self._logged_ms = 0
        self._is_for_operator = False
        self._waiting: dict[Hashable, Backoff] = {}

    @property
    def fault(self) -> str | None:
        """What was said last; None: it works."""
        return self._fault

    @property
    def waits_for_operator(self) -> bool:
        """Whether no waiting mends what fails: somebody has to change a setting, or to run a command."""
        return self._fault is not None and self._is_for_operator

    def failed(self, error: BaseException, who: Hashable = None) -> int:
        """Notes a failure.

        Returns:
            Milliseconds for ``who`` to wait: 200, doubled with each failure in a row, at most 10 000.
        """
        self._tell(False)
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
        """Notes that the thing works for one of them."""
        self.forget(who)
        if self._waiting:
            return
        self._tell(True)
        if self._fault is not None:
            logger.info("%s works again", self._what)
            self._fault = None

    def forget(self, who: Hashable) -> None:
        """Forgets somebody who does not need the thing any more; that says nothing about whether it works."""
        self._waiting.pop(who, None)
