"""Reports records that open transactions hide from a worker, by gauges, a remark in the status and a log line.

Consumers with ``read_committed`` read up to the last stable offset. Records after an open transaction wait until it is committed or
aborted, by default for up to 15 minutes. The worker is ready during that time, although events wait.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.formatting import counted, span
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status

logger = logging.getLogger(__name__)

REPORTED_MS: Final = 10_000
"""Minimum age of an open transaction that is reported; shorter ones are normal."""

FRESH_MS: Final = 30_000
"""Maximum age of a fetch reply whose end offsets are used. If it is older, the reader is paused or disconnected."""

ADVICE: Final = "its producer has neither committed nor aborted it: kafka-transactions.sh find-hanging names it"


@dataclass(slots=True)
class _OpenTransaction:
    """An open transaction, at which the last stable offset of a partition stops."""

    stable: int
    records: int
    since_ms: int
    is_reported: bool = False


class TopicReader(NamedTuple):
    """A consumer group and a topic that the group reads; both are labels of the gauges of open transactions."""

    name: str
    topic: str


def hidden_text(tp: TP, offsets: int, stable: int) -> str:
    """Return a text for messages, which says how many offsets an open transaction hides, and from which offset on."""
    return f"an open transaction hides {counted(offsets, 'offset')} of {tp} from offset {stable} on"


class OpenTransactions:
    """Tracks open transactions in all partitions that a worker reads."""

    def __init__(self, metrics: Metrics, status: Status) -> None:
        self._metrics = metrics
        self._status = status
        self._open: dict[str, dict[TP, _OpenTransaction]] = defaultdict(dict)
        self._topics: dict[str, set[str]] = defaultdict(set)

    def observe(self, reader: str, views: Mapping[TP, ReaderView], now_ms: int) -> None:
        """Set the gauges of a consumer group, and report transactions that stay open for 10 s."""
        of_reader = self._open[reader]
        for tp in of_reader.keys() - views.keys():
            del of_reader[tp]  # the partition was assigned to another worker
        for tp, view in views.items():
            self._observe_one(reader, tp, view, now_ms)
        self._topics[reader] |= {tp.topic for tp in views}
        for topic in self._topics[reader]:
            self._report(TopicReader(reader, topic), {tp: one for tp, one in of_reader.items() if tp.topic == topic}, now_ms)

    def _observe_one(self, reader: str, tp: TP, view: ReaderView, now_ms: int) -> None:
        stable, high, at_ms = view.stable_offset, view.high_watermark, view.fetched_at_ms
        of_reader = self._open[reader]
        former = of_reader.get(tp)
        if stable is None or high is None or at_ms is None or now_ms - at_ms > FRESH_MS:
            of_reader.pop(tp, None)
            return
        if former is not None and (high <= stable or former.stable != stable):
            if former.is_reported:
                logger.warning("the transaction has ended reader=%s source=%s offset=%d", reader, tp, former.stable)
            del of_reader[tp]
        if high > stable:
            of_reader.setdefault(tp, _OpenTransaction(stable, 0, now_ms)).records = high - stable

    def _report(self, reader: TopicReader, found: Mapping[TP, _OpenTransaction], now_ms: int) -> None:
        oldest_ms = max((now_ms - one.since_ms for one in found.values()), default=0)
        self._metrics.open_transaction_records.labels(*reader).set(sum(one.records for one in found.values()))
        self._metrics.open_transaction_seconds.labels(*reader).set(oldest_ms / 1000)
        lasting = {tp: one for tp, one in found.items() if now_ms - one.since_ms >= REPORTED_MS}
        for tp, one in lasting.items():
            if not one.is_reported:
                one.is_reported = True
                logger.warning(
                    "an open transaction hides the records after it reader=%s source=%s offset=%d records=%d: %s",
                    reader.name, tp, one.stable, one.records, ADVICE,
                )  # fmt: skip
        text = "; ".join(hidden_text(tp, one.records, one.stable) for tp, one in sorted(lasting.items()))
        remark = f"{reader.name}: {text}, for {span(oldest_ms)}; {ADVICE}" if text else None
        self._status.remark(f"transaction:{reader.name}:{reader.topic}", remark)
