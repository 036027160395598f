"""Processors of one partition that are new together begin together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


class Beginning:
    """Nobody's first mark is committed before all first marks are known.

    A broker that keeps no metadata knows the committed offset only: the first mark alone would be taken for that of the others,
    which may begin below it.
    """

    def __init__(self) -> None:
        """Waits for nobody."""
        self._awaited: set[str] = set()
        self._known = asyncio.Event()
        self._known.set()

    def expect(self, names: Collection[str]) -> None:
        """Of these no mark is known yet."""
        self._awaited = set(names)
        if self._awaited:
            self._known.clear()

    def leave(self, name: str) -> None:
        """Its mark is known, or it has none to tell."""
        self._awaited.discard(name)
        if not self._awaited:
            self._known.set()

    async def told(self, name: str) -> None:
        """Returns when the marks of all are known."""
        self.leave(name)
        await self._known.wait()
