"""Logs failed attempts: the first one at once, for the author of the function, then at most one line a minute.

Suppressed failures are logged at the end of their minute, even if no attempt fails then.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Final

from streams_app.errors import text_of
from streams_app.formatting import compact_duration
from streams_app.subscribers.declaration.received import Retry
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.execution.in_flight_event import InFlightEvent

logger = logging.getLogger(__name__)

CALLERS: Final = (Path(__file__).parent, Path(__file__).parents[2] / "testing")
"""Folders of the code that calls users' functions, whose frames are skipped in tracebacks."""

REPORT_EVERY_MS: Final = 60_000
ERROR_CHARACTERS: Final = 500
"""Maximum length of an error in the log."""


class FailureReporter:
    """Logs the failed attempts of one subscriber."""

    def __init__(self, name: str, retries: Retries) -> None:
        """Create a reporter without failures.

        Args:
            name: Name of the subscriber.
            retries: Retry rule of the subscriber.
        """
        self._name = name
        self._retries = retries
        self._unreported = 0
        self._last = "", "", ""
        self._next = ""
        self._undecided: tuple[InFlightEvent, int] | None = None
        self._reported_ms: int | None = None

    def count(self, attempt: Attempt) -> None:
        """Count a failed attempt for the next log line; an attempt that raised ``Retry`` is ignored."""
        if isinstance(attempt.error, Retry):
            return
        self._unreported += 1
        # Stored as text, because the exception would keep all objects of its function alive.
        self._last = attempt.in_flight_event.event_id, error_of(attempt), _raised_at(attempt.error)
        rule = self._retries.rule_for(TimeoutError() if attempt.error is None else attempt.error)
        self._undecided = attempt.in_flight_event, 0 if rule is None else rule.attempts

    def report(self, now_ms: int, monotonic_ms: int) -> None:
        """Log the counted failures, at most once a minute, once it is decided whether the last event is retried.

        Args:
            now_ms: Wall clock.
            monotonic_ms: Monotonic time.
        """
        if self._undecided is None:
            return
        (event, most), self._undecided = self._undecided, None
        # The time is 0 if the event has become a dead letter.
        left = compact_duration(event.due_ms - now_ms) if event.due_ms > now_ms else ""
        self._next = f" attempt={event.attempts}/{most} next_in={left}" if left else ""
        self.report_suppressed(monotonic_ms)

    def report_suppressed(self, now_ms: int, *, is_last: bool = False) -> None:
        """Log the failures that were not logged yet, at most once a minute.

        Args:
            now_ms: Monotonic time.
            is_last: Whether to log them now in any case, because there may be no later call.
        """
        if not self._unreported or not (is_last or self._reported_ms is None or now_ms >= self._reported_ms + REPORT_EVERY_MS):
            return
        logger.warning(
            "attempts have failed count=%d subscriber=%s event=%s error=%s%s%s",
            self._unreported, self._name, *self._last, self._next,
        )  # fmt: skip
        self._unreported, self._reported_ms = 0, now_ms


def error_of(attempt: Attempt) -> str:
    """Return the error of an attempt as text for the log; an attempt without an exception has timed out."""
    return "timed out" if attempt.error is None else text_of(attempt.error)[:ERROR_CHARACTERS]


def _raised_at(error: BaseException | None) -> str:
    """Return where the user's function raised an error, or called the code that raised it, as ``at=<file>:<line>`` after a space.

    The text is "" if the traceback of the error contains no such line.
    """
    frames = [] if error is None else traceback.walk_tb(error.__traceback__)
    its_own = next((each for each in frames if Path(each[0].f_code.co_filename).parent not in CALLERS), None)
    return "" if its_own is None else f" at={its_own[0].f_code.co_filename}:{its_own[1]}"
