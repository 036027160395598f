"""Imports past events from a file into the source topic of a live view, with their own timestamps.

The imported events are records in the source topic: they survive a loss of Redis, later removals apply to them, and every other
consumer of the topic reads them as well. The file is read twice, so that nothing is sent before every line has been checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from aiokafka.errors import BrokerResponseError, OutOfOrderSequenceNumber

from streams_app.clock import Clock
from streams_app.delivery.producer import OutgoingRecord
from streams_app.envelopes import REGISTERED
from streams_app.errors import BadEventError, ConfigurationError, TryAgainError, text_of
from streams_app.exact_json import decode, encode
from streams_app.formatting import counted, escaped, moment_ms, span, time_text
from streams_app.kafka.admin import NO_RETENTION_LIMIT, Topic, admin_client, require_topics, topic_configs
from streams_app.kafka.producer import AckedProducer
from streams_app.live.core.record_effects import Removal, ViewRule
from streams_app.settings import LiveView, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import subscriptions_of

SHOWN_FAULTS: Final = 20
PARALLEL: Final = 500
ATTEMPTS: Final = 5
"""Maximum number of attempts to send a line. A line is sent again if the broker did not append it only because it had rejected an
earlier one, so that the sequence numbers of the producer have a gap."""

FIELDS: Final = frozenset({"key", "time", "value", "headers"})
LOG_APPEND_TIME: Final = "LogAppendTime"
OLDEST_TAKEN: Final = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")
"""Topic settings that limit the age of a record. Kafka before 3.6 has only the second; otherwise the first takes precedence."""

ANY_AGE: Final = 2**63 - 1


@dataclass(slots=True)
class ImportPlan:
    """What an import into a live view will send, and what the view will show of it.

    Attributes:
        put: Number of records with an item for the view.
        removed: Number of records that remove an item.
        other: Number of records that are not for this view.
        expired: Number of records whose items have expired already, so that the view does not show them.
        unkept: Number of records older than ``retention.ms`` of the topic, which the broker removes soon.
        kept_ms: Retention of the topic, in ms; None: unlimited.
        oldest_ms: Timestamp of the oldest record; None: the file has no lines.
        readers: Kinds and names of other components of this application that read the topic; journals are omitted.
    """

    lines: int = 0
    put: int = 0
    removed: int = 0
    other: int = 0
    expired: int = 0
    unkept: int = 0
    kept_ms: int | None = None
    oldest_ms: int | None = None
    readers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class BadLines:
    """Counts the invalid lines of an import file, and describes the first ones."""

    shown: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, number: int, text: str) -> None:
        """Count an invalid line; store its description if it is among the first."""
        self.count += 1
        if len(self.shown) < SHOWN_FAULTS:
            self.shown.append(f"line {number}: {text}")


@dataclass(frozen=True, slots=True)
class _Ages:
    """Limits of a topic on the age of records.

    Attributes:
        setting: Name of the topic setting that limits the age of new records; empty: the topic has no such limit.
        taken_ms: Value of this setting, the maximum age in ms.
        kept_ms: Retention of the topic, in ms; None: unlimited.
    """

    setting: str = ""
    taken_ms: int = ANY_AGE
    kept_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _ImportRecord:
    """Input line as the record that will be sent, with the attributes of a consumed record."""

    outgoing: OutgoingRecord

    @property
    def offset(self) -> int:
        return 0

    @property
    def timestamp(self) -> int:
        return self.outgoing.timestamp_ms or 0

    @property
    def key(self) -> bytes | None:
        return self.outgoing.key

    @property
    def value(self) -> bytes | None:
        return self.outgoing.value

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        return self.outgoing.headers


async def plan_import(settings: Settings, name: str, path: Path, clock: Clock) -> ImportPlan:
    """Check every line and the topic, and return what the import will send. Nothing is sent yet.

    Raises:
        ConfigurationError: The view or its topic does not exist, the view has no topic, the values of the topic are framed, or the
            topic does not accept the timestamps. Or lines are invalid: the message describes the first ones.
    """
    view = view_of_topic(settings, name)
    if view.format in REGISTERED:
        raise ConfigurationError(
            [
                f'{view.section} has format = "{view.format}": the lines of a file are JSON, and its topic has framed values; '
                "produce them by your serializer, with their original timestamps"
            ]
        )
    async with admin_client(settings.kafka) as client:
        await require_topics(client, [Topic(view.source, "source", (view.name,))])
        config = (await topic_configs(client, [view.source])).get(view.source, {})
    if config.get("message.timestamp.type") == LOG_APPEND_TIME:
        raise ConfigurationError(
            [
                f"topic {view.source} has message.timestamp.type={LOG_APPEND_TIME}: the broker would replace the times of the file "
                "by that of the import; set CreateTime"
            ]
        )
    plan = _checked(settings, view, path, clock.now_ms(), _ages_of(config))
    plan.readers = readers_of(settings, view)
    return plan


async def send_import(settings: Settings, name: str, path: Path, plan: ImportPlan) -> None:
    """Produce all lines of the file to the source topic of the view.

    Raises:
        ConfigurationError: The topic rejects a line: the message names the line from which to continue. Or the file has changed
            since :func:`plan_import`.
        TryAgainError: Some lines were not acknowledged; the message names the line from which to continue.
    """
    view = view_of_topic(settings, name)
    producer = AckedProducer(settings.kafka, client_id="streams-app-import")
    sent = 0
    try:
        batch: dict[int, OutgoingRecord] = {}
        for number, line in _read_lines(path, view.source):
            batch[number] = line.outgoing
            if len(batch) == PARALLEL:
                sent += await _send(producer, batch, sent, plan.lines, view)
                batch = {}
        if batch:
            await _send(producer, batch, sent, plan.lines, view)
    finally:
        await producer.stop()


async def _send(producer: AckedProducer, batch: Mapping[int, OutgoingRecord], sent: int, lines: int, view: LiveView) -> int:
    """Produce a batch of records by line number. Return their number once all are acknowledged."""
    outcomes: dict[int, BaseException | None] = dict.fromkeys(batch)
    left = batch
    for _ in range(ATTEMPTS):
        outcomes |= zip(left, await producer.send(list(left.values())), strict=True)
        # None of these was appended: the broker rejected an earlier record, so their sequence numbers have a gap.
        left = {number: batch[number] for number, error in outcomes.items() if isinstance(error, OutOfOrderSequenceNumber)}
        if not left:
            break
    failed = {number: error for number, error in outcomes.items() if error is not None}
    if not failed:
        return len(batch)
    first = min(failed)
    # Only an answer of the broker is a rejection; an error of the client, such as a timeout, is not.
    rejected = {at: error for at, error in failed.items() if at not in left and _is_rejection(error)}
    number, error = next(iter((rejected or failed).items()))
    done = (
        f"{view.source} has acknowledged {sent + len(batch) - len(failed):,} of {counted(lines, 'record')}, "
        f"all before line {first}; line {number}: {text_of(error)}"
    )
    twice = (
        "an item that is sent twice is one" if view.item else "what of it is there already counts twice, as items have no name here"
    )
    rest = f"import the file from line {first} on (tail -n +{first}): {twice}"
    if rejected:
        raise ConfigurationError([f"{done}; the broker would reject it again: correct it, then {rest}"]) from error
    raise TryAgainError(f"{done}; {rest}") from error


def _is_rejection(error: BaseException) -> bool:
    return isinstance(error, BrokerResponseError) and not error.retriable


def view_of_topic(settings: Settings, name: str) -> LiveView:
    """Return a live view that has a source topic, by its name."""
    view = settings.live_view(name)
    if not view.is_of_topic:
        raise ConfigurationError([f"{view.section} counts open pages: it has no source, and nothing can be imported"])
    return view


def readers_of(settings: Settings, view: LiveView) -> list[str]:
    """Return the kinds and names of other components of the application that read the source of a view, except journals."""
    source = view.source
    found = [f"fold {fold.name}" for fold in settings.folds if fold.source == source]
    outputs = {fold.name for fold in settings.folds if fold.output == source}
    found += [f"read store {store.name}" for store in settings.read_stores if outputs & set(store.folds)]
    if settings.events.catalogue is not None:
        subscriptions = subscriptions_of(catalogue_of(settings), settings)
        found += [f"subscriber {one.subscriber.name}" for one in subscriptions if one.topic == source]
    found += [f"live view {other.name}" for other in settings.live_of_topics if other.source == source and other.name != view.name]
    return found


def _ages_of(config: Mapping[str, str]) -> _Ages:
    """Return the age limits of a topic from its configuration; without a configuration there are no limits (pure)."""
    limits = [(name, int(config.get(name, ANY_AGE))) for name in OLDEST_TAKEN]
    setting, taken_ms = next(((name, limit_ms) for name, limit_ms in limits if limit_ms != ANY_AGE), ("", ANY_AGE))
    kept_ms = int(config.get("retention.ms", NO_RETENTION_LIMIT))
    is_kept = kept_ms == NO_RETENTION_LIMIT or "delete" not in config.get("cleanup.policy", "delete")
    return _Ages(setting, taken_ms, None if is_kept else kept_ms)


def _checked(settings: Settings, view: LiveView, path: Path, now_ms: int, ages: _Ages) -> ImportPlan:
    plan, faults, too_old = ImportPlan(kept_ms=ages.kept_ms), BadLines(), BadLines()
    rule = ViewRule(view, settings.limits.value_bytes)
    for number, found in _read_lines(path, view.source, faults):
        plan.lines += 1
        at_ms = found.timestamp
        if at_ms > now_ms:
            faults.add(number, "time is to come")
            continue
        if now_ms - at_ms > ages.taken_ms:
            too_old.add(number, f"of {time_text(at_ms)}")
        plan.unkept += ages.kept_ms is not None and now_ms - at_ms > ages.kept_ms
        plan.oldest_ms = at_ms if plan.oldest_ms is None else min(plan.oldest_ms, at_ms)
        try:
            decision = rule.effect_of(0, found, now_ms)
        except BadEventError as error:
            faults.add(number, f"{error.reason}: {escaped(str(error))}")
            continue
        if decision is None:
            plan.other += 1
        elif isinstance(decision, Removal):
            plan.removed += 1
        elif decision.item.time_ms <= now_ms - view.expiry_ms:
            plan.expired += 1
        else:
            plan.put += 1
    _reject(path, view, faults, too_old, ages)
    if not plan.lines:
        raise ConfigurationError([f"{path} has no lines"])
    return plan


def _reject(path: Path, view: LiveView, faults: BadLines, too_old: BadLines, ages: _Ages) -> None:
    """Raise an error if any line of the import file is invalid, or too old for the topic."""
    if too_old.count:
        faults.shown.append(
            f"topic {view.source} has {ages.setting}={ages.taken_ms}: it takes no record older than {span(ages.taken_ms)}, and "
            f"{counted(too_old.count, 'line')} are, the first is {too_old.shown[0]}; raise it on the topic until the import is done"
        )
    if faults.shown:
        more = [f"and {counted(faults.count - SHOWN_FAULTS, 'other line')}"] if faults.count > SHOWN_FAULTS else []
        raise ConfigurationError([f"{path}: nothing was sent", *faults.shown, *more])


def _read_lines(path: Path, topic: str, faults: BadLines | None = None) -> Iterator[tuple[int, _ImportRecord]]:
    """Yield the lines of a file with their numbers. An invalid line is added to ``faults``, or raises an error if that is None."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    yield number, _parse_line(text, topic)
                except ValueError as error:
                    if faults is None:
                        raise ConfigurationError([f"{path} has changed meanwhile: line {number}: {error}"]) from error
                    faults.add(number, str(error))
    except OSError as error:
        raise ConfigurationError([f"{path}: {error.strerror}"]) from error


def _parse_line(text: bytes, topic: str) -> _ImportRecord:
    try:
        given: Any = decode(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    if type(given) is not dict or not {"key", "time", "value"} <= given.keys() or given.keys() - FIELDS:
        raise ValueError('expected {"key", "time", "value"} and perhaps "headers"')
    key, value, headers = given["key"], given["value"], given.get("headers", {})
    if not (key is None or type(key) is str):
        raise ValueError("key is a string, or null where your producers set none")
    if type(value) is not dict:
        raise ValueError("value is an object, as your producers write it")
    if type(headers) is not dict or not all(type(one) is str for one in headers.values()):
        raise ValueError('headers is an object of strings, as in {"ce_type": "news.published"}')
    at_ms = moment_ms(given["time"])
    if at_ms is None:
        raise ValueError("time is neither ms since 1970 nor an ISO time")
    record_key = None if key is None else key.encode()
    made = [(name, one.encode()) for name, one in headers.items()]
    try:
        json = encode(value)
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        raise ValueError(f"value cannot be written as JSON: {error}") from error
    return _ImportRecord(OutgoingRecord(topic, record_key, json, made, at_ms))
