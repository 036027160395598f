"""Attempts that fail are told in the log: the first at once, for whoever writes the function, then one line a minute at most."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Final

from streams_app.errors import text_of
from streams_app.subscribers.received import Retry
from streams_app.subscribers.runner import Call

logger = logging.getLogger(__name__)

CALLERS: Final = (Path(__file__).parent, Path(__file__).parents[1] / "testing")
"""Folders of what calls the functions of users."""

TELL_EVERY_MS: Final = 60_000
ERROR_CHARACTERS: Final = 500
"""So much of an error is logged."""


class Failing:
    """The attempts of one subscriber that have failed, each of which is retried or has made a dead letter."""

    def __init__(self, name: str) -> None:
        """None has.

        Args:
            name: Of the subscriber.
        """
        self._name = name
        self._untold = 0
        self._told_ms: int | None = None

    def tell(self, call: Call) -> None:
        """An attempt has failed, at the end of its call; ``Retry`` says that it was none."""
        if isinstance(call.error, Retry):
            return
        self._untold += 1
        if self._told_ms is not None and call.ended_ms < self._told_ms + TELL_EVERY_MS:
            return
        logger.warning(
            "attempts have failed count=%d subscriber=%s event=%s error=%s%s",
            self._untold, self._name, call.whose.event_id, error_of(call), _place(call.error),
        )  # fmt: skip
        self._untold, self._told_ms = 0, call.ended_ms


def error_of(call: Call) -> str:
    """Why a call has failed, as the log tells it."""
    return "timed out" if call.error is None else text_of(call.error)[:ERROR_CHARACTERS]


def _place(error: BaseException | None) -> str:
    """The line of the function itself, whatever it has called; the whole trace is in the dead letter."""
    lines = [] if error is None else traceback.extract_tb(error.__traceback__)
    its_own = next((line for line in lines if Path(line.filename).parent not in CALLERS), None)
    return "" if its_own is None else f" at={its_own.filename}:{its_own.lineno}"
