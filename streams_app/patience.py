"""How long to wait for something that fails, and what to say: one line when the fault changes, one when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from streams_app.backoff import Backoff
from streams_app.errors import ConfigurationError

logger = logging.getLogger(__name__)


class Patience:
    """The patience of all who need one and the same thing, which works again once it works for everybody who had waited."""

    def __init__(self, what: str, tell: Callable[[bool], None] = lambda _: None) -> None:
        """Nothing has failed yet.

        Args:
            what: Name of the thing, for people.
            tell: Called with whether the thing works.
        """
        self._what = what
        self._tell = tell
        self._fault: str | None = None
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
        if fault != self._fault:
            logger.warning("%s does not work, waiting for it error=%s", self._what, fault)
            self._fault = fault
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
