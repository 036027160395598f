"""Errors of stores and sources: timeouts, denied access and failed queries (pure)."""

from __future__ import annotations

from streams_app.errors import ConfigurationError, TryAgainError


class TooSlowError(TryAgainError):
    """A statement, a request or a call exceeded ``timeout``; its outcome is unknown. A smaller batch may succeed."""


class AccessDeniedError(TryAgainError):
    """The server rejects the credentials or the database, or denies a right; the message names the setting and the remedy.

    A running worker retries, because the right may be granted again; a starting worker or a command ends with exit code 1.
    """

    exit_code = ConfigurationError.exit_code


class SourceFailedError(TryAgainError):
    """A source answered with an error that a few of the requested groups may have caused.

    Attributes:
        why: The text of the error, without the address of the source.
        is_data_error: Whether the error is of a type that a single value can cause, such as a failed cast or a division by zero.
    """

    def __init__(self, text: str, why: str, *, is_data_error: bool) -> None:
        super().__init__(text)
        self.why = why
        self.is_data_error = is_data_error

    @property
    def may_have_values(self) -> bool:
        return True  # it is the text of a database or of a user's function, or names a group
