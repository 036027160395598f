"""How long to wait for something that fails, and what to say: one line when the fault changes, one when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

logger = logging.getLogger(__name__)

FIRST_WAIT_MS: Final = 200
LONGEST_WAIT_MS: Final = 10_000


class Patience:
    """Of everybody who needs one and the same thing; it works again once it works for all who had waited."""

    def __init__(self, what: str, tell: Callable[[bool], None] = lambda _: None) -> None:
        """Nothing has failed yet.

        Args:
            what: The thing, for people.
            tell: Called with whether it works.
        """
        self._what = what
        self._tell = tell
        self._fault: str | None = None
        self._waits_ms: dict[Hashable, int] = {}

    def failed(self, error: BaseException, who: Hashable = None) -> int:
        """Notes a failure.

        Returns:
            Milliseconds for ``who`` to wait: 200, doubled with each failure in a row, at most 10 000.
        """
        self._tell(False)
        fault = str(error) or repr(error)
        if fault != self._fault:
            logger.warning("%s does not work, waiting for it error=%s", self._what, fault)
            self._fault = fault
        wait_ms = self._waits_ms.get(who, FIRST_WAIT_MS)
        self._waits_ms[who] = min(wait_ms * 2, LONGEST_WAIT_MS)
        return wait_ms

    def succeeded(self, who: Hashable = None) -> None:
        """Notes that it works for one of them."""
        self.forget(who)
        if self._waits_ms:
            return
        self._tell(True)
        if self._fault is not None:
            logger.info("%s works again", self._what)
            self._fault = None

    def forget(self, who: Hashable) -> None:
        """Somebody does not need it any more; whether it works is not known by that."""
        self._waits_ms.pop(who, None)
