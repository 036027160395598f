"""Backoff during an outage of a dependency, and log lines about the outage.

An outage is logged when its error changes, every ten minutes while it lasts, and when it ends. So today's log shows an outage that
began last week.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

from streams_app.backoff import Backoff
from streams_app.clock import Clock, SystemClock
from streams_app.errors import ConfigurationError, public_text
from streams_app.formatting import time_text
from streams_app.reported_backoff import REPORT_EVERY_MS
from streams_app.retries import retried

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RETRY_WAIT_MS: Final = 1_000
"""Usual maximum wait of :meth:`OutageReporter.retry` between attempts: all work of a partition waits for it."""


class OutageReporter:
    """Reports outages of one dependency; an outage ends once the dependency works for every caller that had a failure.

    A caller is whatever uses the dependency on its own, for example a processor, which passes itself as ``who``. None stands for
    the only caller.
    """

    def __init__(self, what: str, on_change: Callable[[bool], None] = lambda _: None, clock: Clock | None = None) -> None:
        """Create a reporter without an outage.

        Args:
            on_change: Called with False after each failure, and with True after each success that leaves no failed caller.
        """
        self._what = what
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._fault: str | None = None
        self._public_fault = ""
        self._began_ms = 0
        self._since_ms = 0
        self._logged_ms = 0
        self._is_for_operator = False
        self._waiting: dict[Hashable, Backoff] = {}

    @property
    def fault(self) -> str | None:
        """The last reported error; None if the dependency works."""
        return self._fault

    @property
    def what(self) -> str:
        """Name of the dependency, such as ``read store dashboard``."""
        return self._what

    @property
    def remark(self) -> str | None:
        """Since when the dependency does not work, and why, without values of events or rows; None if it works."""
        if self._fault is None:
            return None
        why = self._public_fault.removeprefix(f"{self._what} ")  # the errors of a store begin with its name
        return f"{self._what} does not work since {time_text(self._since_ms)}: {why}"

    @property
    def waits_for_operator(self) -> bool:
        """Whether only an operator can end the outage, by changing a setting or running a command."""
        return self._fault is not None and self._is_for_operator

    def failed(self, error: BaseException, who: Hashable = None) -> int:
        """Record a failure of the caller ``who``. Log the error if it has changed, or was last logged ten minutes ago.

        Returns:
            Time in ms for which ``who`` has to wait: 200 at first, doubled with each consecutive failure, at most 10 000.
        """
        self._on_change(False)
        fault = str(error) or repr(error)
        self._is_for_operator = isinstance(error, ConfigurationError)
        if self._fault is None:
            self._began_ms, self._since_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        self._public_fault = public_text(error)
        if fault != self._fault:
            logger.warning("%s does not work, waiting for it error=%s", self._what, fault)
            self._fault, self._logged_ms = fault, self._clock.monotonic_ms()
        elif (now_ms := self._clock.monotonic_ms()) - self._logged_ms >= REPORT_EVERY_MS:
            lasted_seconds = (now_ms - self._began_ms) // 1000
            logger.warning("%s still does not work lasted_seconds=%d error=%s", self._what, lasted_seconds, fault)
            self._logged_ms = now_ms
        backoff = self._waiting.setdefault(who, Backoff(first_seconds=0.2, longest_seconds=10.0))
        return round(1000 * backoff.failed())

    async def retry(
        self,
        step: Callable[[], Awaitable[T]],
        who: Hashable,
        errors: tuple[type[BaseException], ...],
        on_failure: Callable[[BaseException], Awaitable[bool]] | None = None,
        *,
        max_wait_ms: int = MAX_RETRY_WAIT_MS,
    ) -> T:
        """Call a step until it raises none of these errors, and return its result; report the outage and its end.

        Args:
            step: The step; it must be safe to repeat, because a failed call may have taken effect.
            on_failure: Called after each failure; if it returns True, the next attempt follows without a wait.
        """

        async def reported(error: BaseException) -> float:
            wait_ms = self.failed(error, who)
            is_over = on_failure is not None and await on_failure(error)
            return 0 if is_over else min(wait_ms, max_wait_ms) / 1000

        result = await retried(step, errors, reported)
        self.succeeded(who)
        return result

    def succeeded(self, who: Hashable = None) -> None:
        """Record a success of the caller ``who``. If no caller with a failure is left, log that the outage is over."""
        self.forget(who)
        if self._waiting:
            return
        self._on_change(True)
        if self._fault is not None:
            logger.info("%s works again", self._what)
            self._fault = None

    def forget(self, who: Hashable) -> None:
        """Remove a caller that no longer needs the dependency; this does not count as a success."""
        self._waiting.pop(who, None)
