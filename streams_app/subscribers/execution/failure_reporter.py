"""Attempts that fail are told in the log: the first at once, for whoever writes the function, then one line a minute at most.

What was held back is told at the end of its minute, whether or not more attempts fail then.
"""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Final

from streams_app.errors import text_of
from streams_app.subscribers.declaration.received import Retry
from streams_app.subscribers.execution.executor import Attempt

logger = logging.getLogger(__name__)

CALLERS: Final = (Path(__file__).parent, Path(__file__).parents[2] / "testing")
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
        self._last = "", "", ""
        self._told_ms: int | None = None

    def tell(self, call: Attempt) -> None:
        """An attempt has failed, at the end of its call; ``Retry`` says that it was none."""
        if isinstance(call.error, Retry):
            return
        self._untold += 1
        # In words: the error would keep alive whatever its function held.
        self._last = call.whose.event_id, error_of(call), _place(call.error)
        self.tell_held(call.ended_ms)

    def tell_held(self, now_ms: int, *, is_last: bool = False) -> None:
        """Tells of those that were held back, at the end of their minute.

        Args:
            now_ms: Time of the clock by which calls end.
            is_last: Whether they are not held back any longer, as nobody may ask again.
        """
        if not self._untold or not (is_last or self._told_ms is None or now_ms >= self._told_ms + TELL_EVERY_MS):
            return
        logger.warning("attempts have failed count=%d subscriber=%s event=%s error=%s%s", self._untold, self._name, *self._last)
        self._untold, self._told_ms = 0, now_ms


def error_of(call: Attempt) -> str:
    """Why a call has failed, as the log tells it."""
    return "timed out" if call.error is None else text_of(call.error)[:ERROR_CHARACTERS]


def _place(error: BaseException | None) -> str:
    """The line of the function itself, whatever it has called; the whole trace is in the dead letter."""
    places = [] if error is None else traceback.walk_tb(error.__traceback__)
    its_own = next((each for each in places if Path(each[0].f_code.co_filename).parent not in CALLERS), None)
    return "" if its_own is None else f" at={its_own[0].f_code.co_filename}:{its_own[1]}"
