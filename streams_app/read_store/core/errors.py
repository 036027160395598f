"""How a store or a source fails that does answer: it is too slow, does not let us, or does not like what it is asked (pure)."""

from __future__ import annotations

from streams_app.errors import ConfigurationError, TryAgainError


class TooSlowError(TryAgainError):
    """A statement, a request or a call exceeded ``timeout``; it may or may not have been done. A smaller one may fit."""


class AccessDeniedError(TryAgainError):
    """The server refuses the credentials, the database or a right; the message names the setting and what to do.

    A worker that runs waits, as somebody may grant the right again; a worker that starts and a command end with 1.
    """

    exit_code = ConfigurationError.exit_code


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
