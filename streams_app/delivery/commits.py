"""What is committed to Kafka, and that it may be refused (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class NotOwnerError(Exception):
    """Kafka refused a commit under our generation: another member may own the partition."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the broker holds for a partition."""

    offset: int
    metadata: str


class Member(Protocol):
    """Under what something is committed: a claim is one."""

    @property
    def generation(self) -> int:
        """Of the consumer group."""

    @property
    def member_id(self) -> str:
        """Of this member in that generation."""


class Membership(NamedTuple):
    """A member of a consumer group, before it has claimed anything."""

    generation: int
    member_id: str
