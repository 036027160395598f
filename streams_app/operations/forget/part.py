"""What ``streams-app forget`` works on: a key, the parts of an application that store it, and the receipt."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import orjson
from redis.asyncio import Redis

from streams_app.codec import canonical_bytes, keys_typed
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError
from streams_app.read_store.core.record import group_column
from streams_app.settings import Settings

SALT_BYTES: Final = 16

TOMBSTONES: Final = "tombstones"
"""What is written instead of removed."""


class ForgottenKey(NamedTuple):
    """A key, in each form in which a part of the application stores it.

    Attributes:
        typed: As typed.
        members: Group keys that it may mean, see :func:`.keys_typed`.
        names: Names of pages and items of live views that it may mean.
    """

    typed: str
    members: tuple[bytes, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, typed: str) -> ForgottenKey:
        members: tuple[bytes, ...] = ()
        with suppress(BadEventError):  # text that UTF-8 does not have is no group
            members = tuple(keys_typed(typed))
        names = [typed]
        with suppress(orjson.JSONDecodeError):
            if type(value := orjson.loads(typed.encode("utf-8", "surrogateescape"))) is str:
                names.append(value)
        return cls(typed, members, tuple(name for name in names if not any("\ud800" <= char <= "\udfff" for char in name)))

    @property
    def record_keys(self) -> tuple[bytes, ...]:
        """Record keys of the groups, as folds and producers write them."""
        return tuple(dict.fromkeys(map(canonical_bytes, self.members)))

    @property
    def neighbour(self) -> str:
        """Another group that has the same record key, as typed: the number 17 for the text "17"; empty if there is none.

        A tombstone would remove the records of both.
        """
        for record_key in self.record_keys:
            text = record_key.decode("utf-8", "surrogateescape")
            with suppress(BadEventError):
                if any(canonical_bytes(other) == record_key and other not in self.members for other in keys_typed(text)):
                    return text
        return ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Values of the column ``group_key`` of read stores."""
        return tuple(group_column(member) for member in self.members)

    def digest(self, salt: bytes) -> str:
        """Return a digest by which somebody who knows the key recognizes the receipt."""
        return hashlib.sha256(salt + self.typed.encode("utf-8", "surrogateescape")).hexdigest()


class TopicBounds(NamedTuple):
    """First and end offset of a partition when the command began."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A run of the command.

    Attributes:
        logs: The partitions of the topics that the application reads. What was in them when the command began is forgotten; what
            arrives afterwards is new. Output topics get records of the key until their folds have emitted what they had, so their
            bounds are read once more then.
        retired_folds: Names of folds that are no longer declared; read stores may still have their values.
        workers: Number of workers that seem to run; 0: nothing is waited for, because nobody would do it.
    """

    settings: Settings
    redis: Redis
    key: ForgottenKey
    logs: dict[TP, TopicBounds]
    workers: int = 0
    retired_folds: list[str] = field(default_factory=list)

    def end_of(self, topic: str, partition: int) -> int:
        """Return the offset from which on events are new."""
        bounds = self.logs.get(TP(topic, partition))
        return 0 if bounds is None else bounds.end

    def unread(self, topic: str, next_offsets: Mapping[int, int]) -> list[str]:
        """Name the partitions of a topic that a component has not read up to the end that they had.

        Args:
            next_offsets: Next offset that the component reads, by partition.
        """
        return [
            f"{tp} is read up to offset {next_offsets.get(tp.partition, 0)} of {bounds.end}"
            for tp, bounds in self.logs.items()
            if tp.topic == topic and bounds.begin < bounds.end and next_offsets.get(tp.partition, 0) < bounds.end
        ]


class Part(Protocol):
    """A component that may store something of the key."""

    @property
    def where(self) -> str:
        """Kind and name of the component, as in ``fold account-metrics``."""

    @property
    def has_offsets(self) -> bool:
        """Whether what is stored shows by its offsets if it is new; otherwise it cannot be searched for after the last removal."""

    @property
    def fills(self) -> str:
        """Topic that the component fills with records of the key until it is finished; empty if there is none."""

    async def find(self) -> Counter[str]:
        """Count what is stored of the key, by what it is."""

    async def remove(self, *, is_last: bool) -> Counter[str]:
        """Remove what is stored of the key; return the counts. The call may be repeated after a crash.

        Args:
            is_last: Whether the component has read what the key had in the logs, or nothing more is waited for.
        """

    async def unfinished(self) -> list[str]:
        """Return why the component may still store more of the key; empty if it has read the logs up to the ends that they had."""


class Kept(NamedTuple):
    """Something that the command does not remove.

    Attributes:
        until_ms: Time from which on it is gone by itself; None: unknown, or never.
        records: Number of records with the key, of a topic whose records were counted.
        mentions: Number of other records that mention the key in their value or headers.
    """

    where: str
    why: str
    until_ms: int | None = None
    records: int | None = None
    mentions: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the command has removed, or in a plan what it would remove.

    Attributes:
        found: Counts by component, and in it by what was found.
        not_yet: What prevents that it is complete; the command may be repeated.
        kept: What the command never removes.
    """

    found: Mapping[str, Mapping[str, int]]
    not_yet: Sequence[str]
    kept: Sequence[Kept]
    logs: Mapping[TP, TopicBounds]

    def counts(self, *, is_written: bool) -> list[dict[str, Any]]:
        """Return what was removed, or what was written, as rows of the receipt."""
        return [
            {"where": where, "what": what, "number": number}
            for where, found in self.found.items()
            for what, number in found.items()
            if number and (what == TOMBSTONES) == is_written
        ]

    def as_json(self, key: ForgottenKey, *, is_plan: bool, with_key: bool, times: tuple[str, str], by: str, reference: str) -> Any:
        """Return the receipt for programs.

        Args:
            with_key: Whether the key is in it as typed; otherwise only its salted digest is.
            times: When the command began and ended.
            reference: Text that says what the receipt belongs to, such as the number of a request.
        """
        salt = secrets.token_bytes(SALT_BYTES)
        shown = key.typed.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return {
            "receipt": 1, "plan": is_plan, "complete": not is_plan and not self.not_yet, "began": times[0], "ended": times[1],
            "by": by, "reference": reference, "key": shown if with_key else None, "salt": salt.hex(), "sha256": key.digest(salt),
            "would_remove" if is_plan else "removed": self.counts(is_written=False),
            "would_write" if is_plan else "written": self.counts(is_written=True),
            "not_yet": list(self.not_yet),
            "not_removed": [kept._asdict() for kept in self.kept],
            "read_up_to": [{"topic": tp.topic, "partition": tp.partition, "offset": one.end} for tp, one in self.logs.items()],
        }  # fmt: skip
