"""``[journals.NAME]``: the events of a topic by key and day."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, field_validator, model_validator

from streams_app.envelopes import BESIDE, UNAVAILABLE, Format, placeholder_faults
from streams_app.fold import FOLD_NAME, RECORD_KEY, TOPIC_NAME
from streams_app.formatting import Duration, milliseconds
from streams_app.settings.base import Section

MIN_KEEP: Final = timedelta(minutes=1)
MAX_KEEP: Final = timedelta(days=3_650)

MIN_BYTES: Final = 1_000_000
"""Minimum of ``max_bytes``. Events are removed in whole segments, which take at most about a quarter of a partition's share."""


MAX_SEGMENT_BYTES: Final = 64_000_000
SEGMENTS_OF_SHARE: Final = 8
STORED_SEGMENTS_OF_SHARE: Final = 4


class JournalSettings(Section):
    """``[journals.NAME]``: stores every event of a topic, by its key, for the time ``keep``."""

    name: str
    """Name of the journal, for readers; label ``journal`` of its metrics."""
    source: str
    """Topic of its events."""
    key: str | tuple[str, ...]
    """A field, a dotted path, a list of them, or ``@key`` for the record key. With ``@key``, values may be any bytes."""
    format: Format = "json"
    """Where the fields of ``key`` are: ``json``; ``debezium``: in the row of a change event; ``cloudevents``: in the ``data`` of a
    CloudEvent in structured mode; ``avro``, ``protobuf`` or ``json-schema``: in a value framed by a schema registry. Values are
    stored as produced, and decoded when they are read."""
    unavailable_value: str = UNAVAILABLE
    """With ``format = "debezium"``: the property ``unavailable.value.placeholder`` of the connector, if it was changed. Debezium
    sends it for a large value that an update did not change."""
    keep: Duration = timedelta(days=30)
    """Retention: older events are removed in whole segments, at most a UTC day later; 1m to 3650d."""
    max_bytes: Annotated[int, Field(ge=MIN_BYTES)] = 8_000_000_000
    """Maximum size in Redis in bytes. Each partition has an equal share, best 1 MB or more; the oldest events are removed first."""
    compress_after: Duration = timedelta(0)
    """A segment (a day, or a part of a large one) is compressed this long after its newest event."""
    compress_rate: Annotated[int, Field(ge=0)] = 8_000_000
    """Maximum rate at which a worker compresses, in received bytes per second; 0: no compression."""

    if TYPE_CHECKING:
        # For type checkers: a field accepts more types than it holds after validation.
        def __init__(
            self,
            *,
            name: str,
            source: str,
            key: str | Sequence[str],
            format: Format = ...,
            unavailable_value: str = ...,
            keep: str | timedelta = ...,
            max_bytes: int = ...,
            compress_after: str | timedelta = ...,
            compress_rate: int = ...,
        ) -> None: ...

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not FOLD_NAME.fullmatch(name):
            raise ValueError("the name of a journal has a-z, 0-9, _ and -, and begins with a letter or digit; at most 63")
        return name

    @model_validator(mode="after")
    def _check(self) -> JournalSettings:
        faults = [*self._key_faults(), *placeholder_faults(self.format, self.unavailable_value)]
        if not TOPIC_NAME.fullmatch(self.source) or self.source in (".", ".."):
            faults.append(f"source = {self.source!r} is not a Kafka topic name (a-z A-Z 0-9 . _ -, at most 249)")
        if not MIN_KEEP <= self.keep <= MAX_KEEP:
            faults.append("keep must be between 1m and 3650d")
        elif self.compress_after >= self.keep:
            faults.append("compress_after must be shorter than keep: removed segments are never compressed")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _key_faults(self) -> list[str]:
        fields = self.key_fields
        faults = []
        if not fields or len(set(fields)) != len(fields):
            faults.append("key must name at least one field, each once")
        if RECORD_KEY in fields and len(fields) > 1:
            faults.append(f"{RECORD_KEY} cannot be combined with fields")
        for path in fields:
            if not all(path.split(".")):
                faults.append(f"key = {path!r} is not a field or a dotted path")
            elif self.format == "json" and path.startswith(BESIDE) and path != RECORD_KEY:
                near = f", did you mean {RECORD_KEY!r}?" if difflib.get_close_matches(path, [RECORD_KEY]) else ""
                faults.append(f"{path!r} begins with @ and is not {RECORD_KEY}, the record key{near}")
        return faults

    @property
    def is_by_record_key(self) -> bool:
        """Whether the key is the record key, so that values are not decoded."""
        return self.key_fields == (RECORD_KEY,)

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields or dotted paths of the key, in their order; ``("@key",)`` if the key is the record key."""
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def keep_ms(self) -> int:
        """Age at which events are removed, in ms."""
        return milliseconds(self.keep)

    @property
    def compress_after_ms(self) -> int:
        """Time between the newest event of a segment and its compression, in ms."""
        return milliseconds(self.compress_after)

    def share(self, partitions: int) -> int:
        """Return how many bytes each partition may take in Redis, if the source has this number of partitions."""
        return self.max_bytes // max(1, partitions)

    def segment_bytes(self, partitions: int) -> int:
        """Return the maximum size of a segment, in bytes as received, if the source has this number of partitions."""
        return max(1, min(MAX_SEGMENT_BYTES, self.share(partitions) // SEGMENTS_OF_SHARE))

    def stored_segment_bytes(self, partitions: int) -> int:
        """Return the size in Redis, in bytes, at which a segment ends, if the source has this number of partitions.

        It is a limit besides :meth:`segment_bytes`, because small events of many keys take several times their size in Redis.
        """
        return max(1, self.share(partitions) // STORED_SEGMENTS_OF_SHARE)

    @property
    def group(self) -> str:
        """Name of the consumer group without the prefix ``<app_id>.``."""
        return f"journal.{self.name}"

    @property
    def section(self) -> str:
        """Name of the section in the file, for messages."""
        return f"journals.{self.name}"


def faults_of_journals(journals: Sequence[JournalSettings]) -> list[str]:
    """Check the journals of an application together; return the faults, one sentence for each."""
    names = [journal.name for journal in journals]
    return ["two journals have the same name"] if len(set(names)) != len(names) else []
