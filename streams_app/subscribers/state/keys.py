"""Every Redis key of subscribers, in one table.

=========================================  ======  =======================================================================
key (after ``{app/sub/topic/part}:v1:``)   type    holds
=========================================  ======  =======================================================================
``meta``                                   hash    token, fence (the low watermark as it was told last), note of what is finished
                                                   above it, number of begins and of requests that learned ids,
                                                   number of the last request that said so
``open``                                   hash    offset of an event that was begun or waits → attempts, deaths, due; at -1
                                                   that a claim of a subscriber with ``"yes"`` has not let go
``known:<hour>``                           hash    identity (digest of the source, event id) → first offset, of events that began
                                                   in that hour
``ids:<hour>``                             hash    event id → first offset, as earlier versions wrote it: it is only read
=========================================  ======  =======================================================================

=========================================  ======  =======================================================================
key (after ``{app/sub}:v1:``)              type    holds
=========================================  ======  =======================================================================
``rate``                                   hash    empty (when the bucket of leases would have been empty, in us), token of
                                                   each worker that leases → when it last did, in us
=========================================  ======  =======================================================================

Owner of ``rate``: all workers of the subscriber together. It is gone when none has asked for some seconds and the bucket is full.
Owner of all others: the worker whose token is in ``meta``. Lifetime: ``meta`` as long as the subscriber is deployed; an entry of
``open`` until its event is finished; ``known:`` and ``ids:`` until they are no longer to be remembered. Nothing is here that is not
in Kafka, too, or allowed to be lost. Names of subscribers and folds are shared, so that no tag is that of a fold.
"""

from __future__ import annotations

from typing import Final

from streams_app.delivery.batch import TP

STATE_VERSION: Final = "v1"
HOUR_MS: Final = 3_600_000


class SubscriberKeys:
    """The keys of one subscriber and partition, in the order in which scripts take them.

    Attributes:
        subscriber: Its name.
        source: The partition.
    """

    def __init__(self, app_id: str, subscriber: str, topic: str, partition: int) -> None:
        """Takes names that were validated: none can hold a brace or a slash."""
        self.subscriber, self.source = subscriber, TP(topic, partition)
        self._base = f"{{{app_id}/{subscriber}/{topic}/{partition}}}:{STATE_VERSION}"
        self.marks = [f"{self._base}:meta", f"{self._base}:open"]

    def ids(self, now_ms: int, remember_ms: int) -> list[str]:
        """The keys in which an event may be known that is to be remembered for so long, that of the hour which is now first.

        The second half of them are those of earlier versions, which kept ids without their source.

        Args:
            now_ms: Wall clock.
            remember_ms: 0: no ids are kept.
        """
        if not remember_ms:
            return []
        hours = range(now_ms // HOUR_MS, (now_ms - remember_ms) // HOUR_MS - 1, -1)
        return [f"{self._base}:{name}:{hour}" for name in ("known", "ids") for hour in hours]


def rate_key(app_id: str, subscriber: str) -> str:
    """The key of what all workers of a subscriber lease from."""
    return f"{{{app_id}/{subscriber}}}:{STATE_VERSION}:rate"


def scan_pattern(app_id: str, subscriber: str) -> str:
    """``SCAN`` pattern of every key of its partitions, whatever the topic and the version of the state."""
    return f"{{{app_id}/{subscriber}/*"
