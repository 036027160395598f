"""Processors of one partition that are new together begin together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


class Beginning:
    """Lets no new processor commit its first mark before the first marks of all are known.

    A broker that keeps no metadata knows the committed offset only: if one processor committed alone, its mark would be taken for
    that of the others, which may begin below it.
    """

    def __init__(self) -> None:
        """No processor is new yet."""
        self._awaited: set[str] = set()
        self._known = asyncio.Event()
        self._known.set()

    def expect(self, names: Collection[str]) -> None:
        """Names the processors whose first mark is not known yet."""
        self._awaited = set(names)
        if self._awaited:
            self._known.clear()

    def leave(self, name: str) -> None:
        """Waits for this processor no longer: its first mark is known, or its claim has ended without one."""
        self._awaited.discard(name)
        if not self._awaited:
            self._known.set()

    async def told(self, name: str) -> None:
        """Notes that the first mark of this processor is known; returns when those of all are."""
        self.leave(name)
        await self._known.wait()
