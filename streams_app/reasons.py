"""Lists the reasons of dead letters. The header ``reason`` of a dead letter has its reason as text (pure).

The type checker rejects other reasons in the code of this project. Readers of dead letters accept any text as the reason, because
another version may have written the dead letter.
"""

from __future__ import annotations

from typing import Final, Literal

Reason = Literal[
    "tombstone",
    "not-json",
    "not-an-object",
    "no-group",
    "no-changed",
    "no-value",
    "too-large",
    "too-many-names",
    "record-too-large",
    "user-error",
    "unknown-fold",
    "unknown-schema",
    "wrong-format",
    "not-a-record",
    "not-storable",
    "source-failed",
    "not-valid",
    "failed",
    "timed-out",
    "rejected",
    "interrupted",
    "crashed",
    "finished-late",
    "no-page",
    "no-item",
]

RECORD_TOO_LARGE: Final = "record-too-large"
"""Reason of a dead letter that a fold writes about a folded record instead of an event. The dead letter has no value."""

INTERRUPTED: Final = "interrupted"
"""Reason of an event that a subscriber may or may not have handled, because its attempt was interrupted."""

FINISHED_LATE: Final = "finished-late"
"""Reason of a second dead letter of an event, which was handled after the first dead letter had been written."""

FOLLOWED: Final[tuple[Reason, ...]] = ("interrupted", "timed-out")
"""Reasons of the first dead letter of an event after which a second dead letter, ``finished-late``, may be written."""

_OF_FOLDS: Final[dict[Reason, str]] = {
    "tombstone": "has an empty value, and `tombstones` is not `ignore`",
    "not-json": "is not JSON; or the fold has to read a number that cannot be kept: `1e999`, or more than 4000 digits",
    "not-an-object": "is JSON, but not an object",
    "no-group": "has no group: a field of `group_key` is missing, null or not a scalar; the detail names it",
    "no-changed": "has no changed names: the field is missing or of a wrong type",
    "no-value": "has a value that `keep` cannot take: a sum needs a number, a maximum a number or text; or it is nested too deeply",
    "too-large": "exceeds `limits.value_bytes`, `limits.key_bytes` or `limits.name_bytes`; or, as a single event, `max_bytes`",
    "too-many-names": "exceeds `limits.names_per_event`",
    "record-too-large": "was folded into a record that is too large for Kafka; the dead letter has no value but a header `fold-id`",
    "user-error": "made a function of the fold raise, or return a value that JSON cannot represent",
    "unknown-fold": "was replayed for a fold that was renamed or removed since",
    "unknown-schema": "is framed by a schema id that the schema registry does not have",
    "wrong-format": "is not in the declared `format`, such as a change event of Debezium without a row; or the fold has to read "
    "a value that its schema forbids",
}

_OF_READ_STORES: Final[dict[Reason, str]] = {
    "not-a-record": "of a read store: is in an output topic but is not a folded record of its fold",
    "not-storable": "of a read store: a folded record with a name or value that the store cannot accept; other names are written",
    "source-failed": "of a read store: a folded record with a group or name for which the source fails; other names are written",
}

_OF_SUBSCRIBERS: Final[dict[Reason, str]] = {
    "not-valid": "does not fit the declared payload; the detail has the path of the fault",
    "failed": "made the function of a subscriber raise in its last attempt, or raise an error that is never retried",
    "timed-out": "exceeded the `timeout` of a subscriber in its last attempt",
    "rejected": "was rejected by the function of a subscriber; the detail has its reason",
    "interrupted": "was interrupted in a subscriber that must not be called twice: its process died or lost the partition",
    "crashed": "was being handled three times in a row when the process of a subscriber died, the last time during its solo retry",
    "finished-late": "was handled by a subscriber after all, after its dead letter `interrupted` or `timed-out` had been written",
}

_OF_VIEWS: Final[dict[Reason, str]] = {
    "no-page": "has no page of a live view: its field is missing, empty, null, not a scalar or longer than 512 bytes",
    "no-item": "has no item of a live view: its field is missing or invalid in the same way",
}

REASONS: Final[dict[Reason, str]] = _OF_FOLDS | _OF_READ_STORES | _OF_SUBSCRIBERS | _OF_VIEWS
"""Description of the event for each reason, as the rest of a sentence about it; in the order of ``docs/reference/errors.md``."""

OF_FOLDS: Final[tuple[Reason, ...]] = tuple(_OF_FOLDS)
OF_READ_STORES: Final[tuple[Reason, ...]] = tuple(_OF_READ_STORES)
OF_SUBSCRIBERS: Final[tuple[Reason, ...]] = ("too-large", "unknown-schema", "wrong-format", *_OF_SUBSCRIBERS)
OF_VIEWS: Final[tuple[Reason, ...]] = ("not-json", "not-an-object", "too-large", "unknown-schema", "wrong-format", *_OF_VIEWS)
