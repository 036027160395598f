"""Updates the Prometheus gauges of one subscriber, and its remark in ``/health/ready``, once a second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.health.unread import Unread, unread_since
from streams_app.kafka.group_agent import UnreadRanges
from streams_app.reasons import FINISHED_LATE
from streams_app.subscribers.declaration.subscriber import Idempotent
from streams_app.subscribers.execution.dispatcher import Dispatcher
from streams_app.subscribers.execution.status import WAITS, SubscriberStatus, combined_status, first_unread, status_remark
from streams_app.subscribers.execution.subscriber_metrics import SubscriberMetrics

logger = logging.getLogger(__name__)

UPDATE_SECONDS: Final = 1.0
REPORT_EVERY_UPDATES: Final = 60


class SubscriberGauges:
    """Gauges of one subscriber, with the status from which they were last set."""

    def __init__(
        self,
        metrics: Metrics,
        name: str,
        dispatcher: Dispatcher,
        subscriber_metrics: SubscriberMetrics,
        clock: Clock,
        remark: Callable[[str | None], None] = lambda text: None,
        lag_ms: Callable[[], int] = lambda: 0,
        waits_for_operator: Callable[[], bool] = lambda: False,
        idempotent: Idempotent = "yes",
    ) -> None:
        """Create the gauges.

        Args:
            remark: Called with a summary of why the subscriber does not run normally, or with None if it runs normally.
            lag_ms: Returns the longest time, in ms, for which the function has blocked its event loop in the last minute.
            waits_for_operator: Returns whether the consumer cannot continue until an operator has run a command.
        """
        self._idempotent = idempotent
        self._name = name
        self._remark = remark
        self._lag_ms = lag_ms
        self._waits_for_operator = waits_for_operator
        self._lag = metrics.subscriber_loop_lag_seconds.labels(name)
        self.present = SubscriberStatus()
        self._dispatcher = dispatcher
        self._subscriber_metrics = subscriber_metrics
        self._clock = clock
        self._begins_and_ends: UnreadRanges = {}
        self._updates = 0
        self._unread: dict[TP, Unread] = {}
        self._gauges = {
            "waiting": metrics.subscriber_waiting_events.labels(name),
            "running": metrics.subscriber_running_events.labels(name),
            "retrying": metrics.subscriber_retrying_events.labels(name),
            "metadata_bytes": metrics.subscriber_note_bytes.labels(name),
            "is_suspended": metrics.subscriber_suspended.labels(name),
        }
        self._oldest = metrics.subscriber_oldest_waiting_seconds.labels(name)
        self._waits_for = {what: metrics.waiting_for.labels(name, what) for what in WAITS}

    def log_rejections(self) -> None:
        reasons = self._subscriber_metrics.dead_letters_since()
        # Not counted as a dead-lettered event, because it is the second dead letter of its event.
        late = reasons.pop(FINISHED_LATE, 0)
        if reasons:
            text = ", ".join(f"{dead_letters} {reason}" for reason, dead_letters in reasons.most_common())
            events = counted(reasons.total(), "event")
            logger.warning("%s dead-lettered in the last minute (%s) subscriber=%s", events, text, self._name)
        if late:
            events = counted(late, "event")
            logger.warning("%s finished late in the last minute, after a dead letter subscriber=%s", events, self._name)

    def update(self, unread_ranges: UnreadRanges | None) -> None:
        """Update every gauge, and export the metrics of the subscriber; once a minute, log the dead letters since the last time.

        While the broker does not answer, the last known ends of the logs are used, so the reported age of unread events keeps
        increasing.
        """
        is_away = unread_ranges is None and bool(self._begins_and_ends)
        if unread_ranges is not None:
            self._begins_and_ends = unread_ranges
        self._update(is_away=is_away)
        self._subscriber_metrics.export()
        self._updates += 1
        if self._updates % REPORT_EVERY_UPDATES == 0:
            self.log_rejections()

    def _update(self, *, is_away: bool) -> None:
        now_ms = self._clock.now_ms()
        statuses = self._dispatcher.statuses()
        begins = first_unread(statuses, self._begins_and_ends)
        unread_ranges = {tp: (begins[tp], end) for tp, (_, end) in self._begins_and_ends.items()}
        self._unread = unread_since(self._unread, unread_ranges, now_ms)
        since = [one.since_ms for one in self._unread.values()]
        now = combined_status(
            statuses, self._begins_and_ends, [*since, self._dispatcher.oldest_queued_ms()],
            running=self._dispatcher.running, hanging=self._dispatcher.executor.hanging,
            is_suspended=self._dispatcher.circuit_breaker.is_suspended, now_ms=now_ms,
        )  # fmt: skip
        # A consumer that is being recreated has no client for requests, so the broker is not the cause of the missing answer.
        blamed = {"operator"} if self._waits_for_operator() else {"broker"} if is_away else set()
        # If the broker does not answer, the dead-letter topic is not the cause.
        waits_for = now.waits_for - {"dead-letters"} if is_away else now.waits_for
        self.present = now._replace(waits_for=waits_for | blamed)
        for name, gauge in self._gauges.items():
            gauge.set(getattr(now, name))
        self._oldest.set(now.oldest_waiting_ms / 1000)
        self._lag.set(self._lag_ms() / 1000)
        self._remark(status_remark(self._name, self.present, self._idempotent))
        for what, gauge in self._waits_for.items():
            gauge.set(what in self.present.waits_for)
