"""Redis keys of subscribers, with their types, content, owners and lifetimes. An arrow separates a field of a hash from its value.

=========================================  ======  =======================================================================
key (after ``{app/sub/topic/part}:v1:``)   type    holds
=========================================  ======  =======================================================================
``meta``                                   hash    token, fence (the low watermark as last written), note (metadata: finished and
                                                   begun offsets above the fence), number (of begun events plus requests that added
                                                   ids), told (number of the last request that wrote outcomes)
``open``                                   hash    offset of an event that is begun or waits → attempts, crash count, due; at -1
                                                   the claim of a subscriber with ``"yes"`` that was not released
``known:<hour>``                           hash    identity (digest of the source, event id) → first offset, of events that began
                                                   in that hour
``ids:<hour>``                             hash    event id → first offset, written by earlier versions, only read now
=========================================  ======  =======================================================================

=========================================  ======  =======================================================================
key (after ``{app/sub}:v1:``)              type    holds
=========================================  ======  =======================================================================
``rate``                                   hash    empty (when the token bucket would have been empty, in us), token of each
                                                   worker that takes leases → its last request, in us
``retry``                                  hash    at (time of a request to retry now what waits, in ms), token of each worker
                                                   that has carried it out → number of events
=========================================  ======  =======================================================================

Owner of ``rate``: all workers of the subscriber. It expires when the bucket is full and no worker has requested leases for some
seconds. Owner of ``retry``: the command that requests; it expires after 10 s. Owner of all others: the worker whose token is in
``meta``. Lifetime: ``meta`` while the subscriber is deployed; an entry of ``open`` until its event is finished; ``known:`` and
``ids:`` while ids are remembered. Data that must survive a loss of Redis is also in Kafka. Subscribers and folds have different
names, so they never share a hash tag.
"""

from __future__ import annotations

from typing import Final

from streams_app.delivery.batch import TP

STATE_VERSION: Final = "v1"
HOUR_MS: Final = 3_600_000


class SubscriberKeys:
    """Redis keys of one subscriber and partition, whose validated names contain neither braces nor slashes.

    Attributes:
        state: Keys of the hashes ``meta`` and ``open``, in the order in which scripts expect them.
    """

    def __init__(self, app_id: str, subscriber: str, topic: str, partition: int) -> None:
        self.subscriber, self.source = subscriber, TP(topic, partition)
        self._base = f"{{{app_id}/{subscriber}/{topic}/{partition}}}:{STATE_VERSION}"
        self.state = [f"{self._base}:meta", f"{self._base}:open"]

    def ids(self, now_ms: int, remember_ms: int) -> list[str]:
        """Return the keys that may contain an event id, one for each hour from the current one back; none if ``remember_ms`` is 0.

        The second half of the list consists of keys of earlier versions, which stored ids without their source.
        """
        if not remember_ms:
            return []
        hours = range(now_ms // HOUR_MS, (now_ms - remember_ms) // HOUR_MS - 1, -1)
        return [f"{self._base}:{name}:{hour}" for name in ("known", "ids") for hour in hours]


def rate_key(app_id: str, subscriber: str) -> str:
    """Return the key of the token bucket that all workers of a subscriber share."""
    return f"{{{app_id}/{subscriber}}}:{STATE_VERSION}:rate"


def retry_key(app_id: str, subscriber: str) -> str:
    """Return the key of the request that what waits for a retry is retried now."""
    return f"{{{app_id}/{subscriber}}}:{STATE_VERSION}:retry"


def scan_pattern(app_id: str, subscriber: str) -> str:
    """Return the ``SCAN`` pattern of all keys of a subscriber's partitions, of all topics and state versions."""
    return f"{{{app_id}/{subscriber}/*"
