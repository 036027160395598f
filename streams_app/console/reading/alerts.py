"""The alerts of ``deploy/alerts.yml`` that hold now, by the last hour of the metrics (pure).

Prometheus evaluates all of them, also over days; those here need no more than the console knows. Names and limits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Samples

Severity = Literal["critical", "warning"]
MINUTE: Final = 60_000 // EVERY_MS
"""Slots of the history in a minute."""

OVERDUE_SECONDS: Final = 60.0
STILL_MINUTES: Final = 3


class Alert(NamedTuple):
    """An alert that holds.

    Attributes:
        rule: Name of the alert in ``deploy/alerts.yml``.
        kind: What it is about: the label of its metrics, such as ``fold``.
        about: The value of this label.
    """

    rule: str
    severity: Severity
    kind: str
    about: str
    text: str


class Facts(NamedTuple):
    """What the rules are evaluated on."""

    history: History
    workers: Sequence[Samples]
    now_ms: int

    def names(self, metric: str, label: str) -> list[str]:
        return sorted({name for samples in self.workers for name in samples.by(metric, label)})

    def max(self, metric: str, /, **labels: str) -> float:
        return max((found for samples in self.workers if (found := samples.total(metric, **labels)) is not None), default=0.0)

    def is_still(self, metric: str, /, **labels: str) -> bool:
        """Return whether a counter has been seen for 3 minutes and was not increased."""
        points = self.history.rate(metric, self.now_ms, labels, slots=STILL_MINUTES * MINUTE)
        return None not in points and not any(points)

    def increases(self, metric: str, minutes: int, label: str, /, **labels: str) -> dict[str, float]:
        """Return by how much a counter was increased, by one of its labels; labels without an increase are left out."""
        found = {}
        for value in sorted({value for samples in self.workers for value in samples.by(metric, label, **labels)}):
            more = self.history.increase(metric, self.now_ms, minutes * MINUTE, {label: value, **labels})
            if more is not None and more > 0:
                found[value] = more
        return found


def _grown(metric: str, minutes: int, by: str | None = None) -> Callable[[Facts, str, str], str | None]:
    """Return a condition: a counter was increased within the last minutes; with ``by``, it returns the values of that label."""

    def holds(facts: Facts, label: str, name: str) -> str | None:
        found = facts.increases(metric, minutes, by or label, **({label: name} if by else {}))
        return ", ".join(found) if by and found else ("" if name in found else None)

    return holds


def _above(metric: str, limit: float) -> Callable[[Facts, str, str], str | None]:
    return lambda facts, label, name: "" if facts.max(metric, **{label: name}) > limit else None


def _still(waiting: str, done: str) -> Callable[[Facts, str, str], str | None]:
    def holds(facts: Facts, label: str, name: str) -> str | None:
        return "" if facts.max(waiting, **{label: name}) > 0 and facts.is_still(done, **{label: name}) else None

    return holds


def _lasting(metric: str, minutes: int) -> Callable[[Facts, str, str], str | None]:
    def holds(facts: Facts, label: str, name: str) -> str | None:
        points = facts.history.gauge(metric, facts.now_ms, {label: name}, how="max", slots=minutes * MINUTE)
        return "" if all(points) else None

    return holds


def _waits_for(what: str) -> Callable[[Facts, str, str], str | None]:
    return lambda facts, _, name: "" if facts.max("waiting_for", subscriber=name, what=what) > 0 else None


class _Rule(NamedTuple):
    name: str
    severity: Severity
    label: str
    metric: str
    holds: Callable[[Facts, str, str], str | None]
    text: str


RULES: Final = (
    _Rule("FoldStandsStill", "critical", "fold", "lag_events", _still("lag_events", "events_folded_total"),
          "Events of {name} wait, and none was folded for 3 minutes"),
    _Rule("FoldOverdue", "critical", "fold", "oldest_overdue_seconds", _above("oldest_overdue_seconds", OVERDUE_SECONDS),
          "Records of {name} are overdue by more than a minute"),
    _Rule("KnownLoss", "critical", "fold", "known_loss_events_total", _grown("known_loss_events_total", 60),
          "Retention has removed events before {name} had them"),
    _Rule("LogWentBack", "critical", "name", "log_went_back_events_total", _grown("log_went_back_events_total", 60),
          "The broker has lost acknowledged events that {name} had read: its log went back"),
    _Rule("DeadLetters", "warning", "fold", "dead_letters_total", _grown("dead_letters_total", 10, "reason"),
          "Events of {name} became dead letters within 10 minutes: {detail}"),
    _Rule("MisroutedEvents", "warning", "fold", "misrouted_events_total", _grown("misrouted_events_total", 15),
          "Events of {name} have record keys that differ from their group keys: a group may be split over partitions"),
    _Rule("OpenTransaction", "warning", "reader", "open_transaction_seconds", _above("open_transaction_seconds", OVERDUE_SECONDS),
          "A transaction has been open for a minute and hides the records after it from {name}"),
    _Rule("ReadStoreStandsStill", "critical", "store", "read_store_lag_records",
          _still("read_store_lag_records", "read_store_writes_total"),
          "Records wait for the read store {name}, and none was written for 3 minutes"),
    _Rule("ReadStoreBehind", "warning", "store", "read_store_oldest_unsynced_seconds",
          _above("read_store_oldest_unsynced_seconds", OVERDUE_SECONDS),
          "The oldest record that the read store {name} lacks is older than a minute"),
    _Rule("ReadStoreDeadLetters", "warning", "store", "read_store_dead_letters_total",
          _grown("read_store_dead_letters_total", 10, "reason"),
          "Records became dead letters of the read store {name} within 10 minutes: {detail}"),
    _Rule("SubscriberSuspended", "critical", "subscriber", "subscriber_suspended", _above("subscriber_suspended", 0),
          "The last attempts of {name} have all failed: one at a time is made"),
    _Rule("NothingProcessed", "critical", "subscriber", "waiting_for", _waits_for("operator"),
          "{name} cannot continue until an operator has run a command"),
    _Rule("SubscriberRedisFull", "critical", "subscriber", "waiting_for", _waits_for("redis-memory"),
          "Redis has no room for what {name} must remember"),
    _Rule("SubscriberErrors", "warning", "subscriber", "subscriber_dead_letters_total",
          _grown("subscriber_dead_letters_total", 10, "reason"),
          "Events became dead letters of {name} within 10 minutes: {detail}"),
    _Rule("LiveViewReading", "critical", "view", "live_reading", _lasting("live_reading", 5),
          "Nothing of the live view {name} has been shown for 5 minutes: it is read from its source"),
    _Rule("JournalStandsStill", "critical", "journal", "journal_lag_records",
          _still("journal_lag_records", "journal_entries_total"), "Events wait for the journal {name}, and none was filed"),
    _Rule("JournalGap", "warning", "journal", "journal_gap_offsets_total", _grown("journal_gap_offsets_total", 60),
          "Retention has removed events before the journal {name} had them"),
    _Rule("JournalDamaged", "warning", "journal", "journal_damaged_blocks_total", _grown("journal_damaged_blocks_total", 60),
          "Blocks of the journal {name} cannot be decoded"),
)  # fmt: skip


def alerts_of(facts: Facts) -> Iterator[Alert]:
    """Yield the alerts that hold now, in the order of :data:`RULES`."""
    for rule in RULES:
        for name in facts.names(rule.metric, rule.label):
            detail = rule.holds(facts, rule.label, name)
            if detail is not None:
                yield Alert(rule.name, rule.severity, rule.label, name, rule.text.format(name=name, detail=detail))
