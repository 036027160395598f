"""How a store or a source fails that does answer: it is too slow, or does not like what it is asked (pure)."""

from __future__ import annotations

from streams_app.errors import TryAgainError


class TooSlowError(TryAgainError):
    """A statement, a request or a call exceeded ``timeout``; it may or may not have been done. A smaller one may fit."""


class SourceFailedError(TryAgainError):
    """A source of values answered with an error, which may be caused by a few of the groups that it was asked for.

    Attributes:
        why: The error in words, without the address of the source.
        is_data_error: The error is about a value (a cast, a division by zero), so it says nothing of the source as a whole.
    """

    def __init__(self, text: str, why: str, *, is_data_error: bool) -> None:
        """Names source and error."""
        super().__init__(text)
        self.why = why
        self.is_data_error = is_data_error
