"""What is committed to Kafka, in whose name, and the error of a commit that Kafka refuses (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class NotOwnerError(Exception):
    """Kafka refused a commit under our generation: another member may own the partition."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset that the broker holds for a partition, and the metadata that was committed with it."""

    offset: int
    metadata: str


class Member(Protocol):
    """The member of a consumer group in whose name something is committed; a claim is one."""

    @property
    def generation(self) -> int:
        """Generation of the consumer group in which the member owns its partitions."""

    @property
    def member_id(self) -> str:
        """Id that the group's coordinator gave the member in that generation."""


class Membership(NamedTuple):
    """A member of a consumer group, before it has claimed anything."""

    generation: int
    member_id: str
