"""Events of one key one after the other, in the order of the log (pure)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyQueue(Generic[T]):
    """The queue of each key that has an unfinished event.

    The event in front holds its key from its arrival until it is finished: while it runs, and while it waits for a retry, too. An
    event without a key waits for nobody and holds up nobody.
    """

    def __init__(self) -> None:
        """No key has an event."""
        self._behind: dict[bytes, deque[T]] = {}

    def next_behind(self) -> Iterator[T]:
        """Of each key that has some the first event that is not in front."""
        return (behind[0] for behind in self._behind.values() if behind)

    def arrived(self, key: bytes | None, event: T) -> bool:
        """Notes an event that was read.

        Returns:
            Whether it may begin; otherwise :meth:`finished` returns it when its turn comes.
        """
        if key is None:
            return True
        behind = self._behind.get(key)
        if behind is None:
            self._behind[key] = deque()
            return True
        behind.append(event)
        return False

    def finished(self, key: bytes | None) -> T | None:
        """Notes that the event that holds a key is finished, done or dead letter.

        Returns:
            The event that holds the key now and may begin; None where no more is there.
        """
        if key is None:
            return None
        behind = self._behind[key]
        if behind:
            return behind.popleft()
        del self._behind[key]
        return None


class RetryQueue(Generic[T]):
    """Events that wait until they are due."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._heap: list[tuple[int, int, T]] = []
        # Of several that are due at the same moment the one that came first is first, and the events are never compared.
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, event: T, due_ms: int) -> None:
        """Lets an event wait."""
        heapq.heappush(self._heap, (due_ms, next(self._numbers), event))

    def due(self, now_ms: int) -> int:
        """How many are due."""
        return sum(due_ms <= now_ms for due_ms, _, _ in self._heap)

    def pop_due(self, now_ms: int) -> T | None:
        """Takes the event that has been due for longest; None: none is due."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[2]
        return None
