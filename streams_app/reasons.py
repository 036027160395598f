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
    "no-id",
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
    "no-id": "has no id for `dedupe_by`: the field or header is missing, empty, or neither a string nor an integer",
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

ADVICE: Final[dict[Reason, str]] = {
    "tombstone": 'Set `tombstones = "ignore"` if deletions are expected; otherwise correct the producer.',
    "not-json": "Correct the producer, or declare the `format` in which it writes.",
    "not-an-object": "Have the producer send an object; a value of another shape needs a function in Python.",
    "no-group": "Correct the producer, or `group_key`; then replay.",
    "no-changed": "Correct the producer, or `changed`; then replay.",
    "no-value": "Correct the producer, or `keep`; then replay.",
    "no-id": "Correct the producer, or `dedupe_by`; then replay.",
    "too-large": "Raise the limit that the detail names, or have the producer split its events; then replay.",
    "too-many-names": "Raise `limits.names_per_event`, or have the producer split its events; then replay.",
    "record-too-large": "Lower `max_changed` or `max_bytes`, or raise `max.message.bytes` of the topic; the source has its events.",
    "user-error": "Correct the function, restart the workers, then replay.",
    "unknown-fold": "Replay for the new name of the fold: `dead-letters replay --fold NEW --refused-by OLD`.",
    "unknown-schema": "Register the schema, or correct `schema_registry.url` if it is another registry; then replay.",
    "wrong-format": "Correct the producer, or declare the `format` in which it writes; then replay.",
    "not-a-record": "Find who else writes to the output topic: only its fold may.",
    "not-storable": "Correct the column or mapping of the store; then replay.",
    "source-failed": "Correct the source of the read store, restart the workers, then replay.",
    "not-valid": "Correct the producer, or the declared payload; then replay.",
    "failed": "Read the trace, correct the function or what it calls, restart the workers, then replay.",
    "timed-out": "Find what the function waited for, or raise its `timeout`; then replay.",
    "rejected": "The function has decided so: nothing, unless the detail is a surprise.",
    "interrupted": "Find out whether it took effect; if not, replay.",
    "crashed": "Read the last log lines of the process, correct what ended it, then replay.",
    "finished-late": "Nothing: the event was handled. Do not replay it.",
    "no-page": "Correct the producer, or `page` of the view; then replay.",
    "no-item": "Correct the producer, or `item` of the view; then replay.",
}
"""What to do about an event with each reason, as sentences."""

OF_FOLDS: Final[tuple[Reason, ...]] = tuple(_OF_FOLDS)
OF_READ_STORES: Final[tuple[Reason, ...]] = tuple(_OF_READ_STORES)
OF_SUBSCRIBERS: Final[tuple[Reason, ...]] = ("too-large", "unknown-schema", "wrong-format", *_OF_SUBSCRIBERS)
OF_VIEWS: Final[tuple[Reason, ...]] = ("not-json", "not-an-object", "too-large", "unknown-schema", "wrong-format", *_OF_VIEWS)
