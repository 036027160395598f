"""What a browser asks for: checked texts of paths and queries (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from streams_app.formatting import suggestion

MAX_TEXT: Final = 2_048
"""Maximum number of characters of a value in a query; a group key has at most 512 bytes by default."""

_LONGEST_NUMBER: Final = 18


class PageError(Exception):
    """A request that cannot be answered, with its HTTP status and a sentence for its reader."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class OtherPage(Exception):  # an answer, no error
    """What was asked for has a page of its own, to which a browser is sent."""

    def __init__(self, link: str) -> None:
        super().__init__(link)
        self.link = link


class Asked:
    """The parameters of a request: those in its path and in its query."""

    def __init__(self, path: Mapping[str, str], query: Mapping[str, str]) -> None:
        self._path = path
        self._query = query

    def named(self, name: str, known: Collection[str], what: str) -> str:
        """Return a name in the path.

        Raises:
            PageError: Nothing has this name (404).
        """
        given = self._path[name][:MAX_TEXT]
        if given not in known:
            raise PageError(404, f"There is no {what} {given!r}{suggestion(given, list(known))}".rstrip("?"))
        return given

    def text(self, name: str) -> str:
        """Return a value of the query; empty if it is missing.

        Raises:
            PageError: It is too long (400).
        """
        given = self._query.get(name, "")
        if len(given) > MAX_TEXT:
            raise PageError(400, f"{name} is too long: at most {MAX_TEXT:,} characters")
        return given

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return a value of the query that is one of some words.

        Raises:
            PageError: It is another word (400).
        """
        given = self._query.get(name, default)
        if given not in choices:
            raise PageError(400, f"{name} must be one of {', '.join(choices)}")
        return given

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a number of the query.

        Raises:
            PageError: It is no number, or out of range (400).
        """
        given = self._query.get(name, str(default))
        is_number = given.isascii() and given.isdigit() and len(given) <= _LONGEST_NUMBER
        if not (is_number and least <= int(given) <= most):
            raise PageError(400, f"{name} must be a number from {least:,} to {most:,}")
        return int(given)
