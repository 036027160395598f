"""What is committed to Kafka, in whose name, and the error of a commit that Kafka refuses (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from streams_app.errors import TryAgainError


class NotOwnerError(Exception):
    """Kafka refused a commit under our generation: another member may own the partition."""


class InDoubtError(TryAgainError):
    """A commit has had no answer: the broker may take it after a newer one, as long as our member is in the group."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset that the broker holds for a partition, and the metadata that was committed with it."""

    offset: int
    metadata: str


class Member(NamedTuple):
    """The member of a consumer group in whose name something is committed.

    Attributes:
        generation: Generation of the consumer group in which it owns its partitions.
        member_id: Id that the group's coordinator gave it in that generation.
    """

    generation: int
    member_id: str
