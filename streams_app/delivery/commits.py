"""What is committed to Kafka, and that it may be refused (pure)."""

from __future__ import annotations

from dataclasses import dataclass


class NotOwnerError(Exception):
    """Kafka refused a commit under our generation: another member may own the partition."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the broker holds for a partition."""

    offset: int
    metadata: str
