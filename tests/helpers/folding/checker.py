"""Checks the output as consumers see it: from topics alone, never from Redis or logs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.structs import ConsumerRecord


@dataclass
class Outcome:
    """Folded records as a consumer sees them.

    Attributes:
        ids_of: Changed name → ids of the records that contain it. Tests give every event a unique name.
        values: Fold id → its first value.
        groups: Fold id → the group key.
        redelivered: Number of records with an id that occurred before.
        differing: Ids that occurred with two different values.
    """

    ids_of: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, bytes] = field(default_factory=dict)
    redelivered: int = 0
    differing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._raw: dict[str, bytes] = {}

    def add(self, record: ConsumerRecord) -> None:
        """Add one record of an output topic."""
        value = json.loads(record.value)
        fold_id = value["fold"]["id"]
        assert dict(record.headers)["fold-id"] == fold_id.encode()
        if fold_id in self._raw:
            self.redelivered += 1
            if self._raw[fold_id] != record.value:
                self.differing.add(fold_id)
            return
        self._raw[fold_id] = record.value
        self.values[fold_id] = value
        self.groups[fold_id] = record.key
        for name in value.get("metrics", ()):
            self.ids_of[name].add(fold_id)

    @property
    def events(self) -> int:
        """Return the number of folded events, counting each record id once."""
        return sum(value["fold"]["events"] for value in self.values.values())

    def faults(self, sent: Mapping[str, bytes], *, is_exact: bool = True) -> list[str]:
        """Return all violations.

        Args:
            sent: Name → group key of every acknowledged event.
            is_exact: No event may be in two folds, no id may have two contents (true while Redis kept its data).
        """
        missing = sorted(set(sent) - set(self.ids_of))
        invented = sorted(set(self.ids_of) - set(sent))
        twice = sorted(name for name, ids in self.ids_of.items() if len(ids) > 1)
        strangers = sorted(
            name for name, ids in self.ids_of.items() for fold_id in ids if name in sent and self.groups[fold_id] != sent[name]
        )
        found = {
            "lost": missing,
            "invented": invented,
            "in another group": strangers,
        }
        if is_exact:
            found["under two fold ids"] = twice
            found["content differs under one id"] = sorted(self.differing)
        return [f"{len(names)} {what}, e.g. {names[:5]}" for what, names in found.items() if names]


def outcome_of(records: Iterable[ConsumerRecord]) -> Outcome:
    """Return the outcome of a whole topic."""
    outcome = Outcome()
    for record in records:
        outcome.add(record)
    return outcome


def event(account: str, *names: str, **more: Any) -> tuple[bytes, bytes]:
    """Return key and value of an event that changes ``names``."""
    return account.encode(), json.dumps({"account_id": account, "metrics": dict.fromkeys(names, 1), **more}).encode()
