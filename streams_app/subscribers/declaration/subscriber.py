"""Declaration of a subscriber: its function, its source and its delivery guarantee (pure).

A declaration is immutable and validated when it is created; all faults are reported at once. The decorator registers nothing: a
subscriber runs only if the catalogue lists it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Generic, Literal, get_args, get_origin, get_type_hints

from typing_extensions import TypeVar

from streams_app.errors import ConfigurationError
from streams_app.events.declaration import Event, M, T, description_faults
from streams_app.events.payloads import payload_faults, with_events
from streams_app.fold import FOLD_NAME
from streams_app.formatting import duration_text, milliseconds
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.retries import Retries, duration

Idempotent = Literal["yes", "no", "unknown"]
Start = Literal["earliest", "latest"]
Tombstones = Literal["dead-letter", "ignore"]
ForgetFunction = Callable[[str], Awaitable[None] | None]
"""Function that erases what a subscriber has stored of a key, given as it is typed on the command line."""

R_co = TypeVar("R_co", bound=Awaitable[None] | None, default=Awaitable[None] | None, covariant=True)
"""The return type of a function: None, or an awaitable for ``async`` functions."""

MAX_CONCURRENCY: Final = 1_000
MAX_EACH_PERIOD: Final = 1_000_000
RATE: Final = re.compile(r"^(\d{1,7})\s*/\s*(s|m|h)$", re.ASCII)
PERIODS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000}
BOUNDS: Final = {
    "timeout": (timedelta(milliseconds=10), timedelta(hours=1)),
    "remember": (timedelta(minutes=1), timedelta(days=7)),
    "patience": (timedelta(0), timedelta(days=1)),
}
LONGEST_UNREPEATABLE: Final = timedelta(minutes=5)
"""Maximum time-out of a function that must not run twice, because a rebalance waits until its attempts have ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Records(Generic[T]):
    """The output records of one fold as the source of a subscriber.

    Attributes:
        payload: Type of what the function receives of a record: of its value, or ``list[T]`` for the events of a record if the fold
            has ``keep = "events"``.
        value_type: Type to which the value of a record is decoded: the payload or, for ``list[T]``, an object that contains the
            list.
    """

    fold: str
    payload: type[T]
    value_type: type[Any] = field(init=False)

    def __post_init__(self) -> None:
        item = get_args(self.payload)[0] if self.is_list else self.payload
        faults = payload_faults("the payload", item)
        if not faults:
            object.__setattr__(self, "value_type", with_events(item) if self.is_list else item)
        if not isinstance(self.fold, str) or not FOLD_NAME.fullmatch(self.fold):
            faults.append("the name of a fold has a-z, 0-9, _ and -, at most 63")
        if faults:
            raise ConfigurationError([f"records of {self.fold!r}: {fault}" for fault in faults])

    @property
    def is_list(self) -> bool:
        """Whether the function receives a list with the events of a record, instead of one value."""
        return get_origin(self.payload) is list and len(get_args(self.payload)) == 1


def records_of(fold: str, payload: type[T]) -> Records[T]:
    """Return the output records of a fold as the source of a subscriber; the value of each is decoded to ``payload``.

    For example: ``@subscriber(records_of("account-metrics", AccountChanged), …)``. If the fold has ``keep = "events"``, give the
    type of a list: with ``records_of("chats", list[Message])``, the function receives the events of a record, in order.

    Raises:
        ConfigurationError: The name or the type is not valid.
    """
    return Records(fold, payload)


@dataclass(frozen=True, slots=True)
class Rate:
    """Maximum number of attempts that may start in each period, in all workers together."""

    count: int
    period_ms: int

    def __str__(self) -> str:
        return f"{self.count}/{next(unit for unit, period_ms in PERIODS_MS.items() if period_ms == self.period_ms)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Subscriber(Generic[T, M, R_co]):
    """A function that is called for each event, and its options; calling the subscriber calls the function.

    The attributes are the arguments of :func:`subscriber`, except these:

    Attributes:
        name: Name of the function; part of the consumer group ``<app_id>.<name>``, of metrics and of settings.
        function: Awaited if it is ``async``, otherwise called in a thread.
        idempotent: Determines the delivery guarantee; ``unknown`` counts as ``no`` unless Redis loses data.
    """

    name: str
    function: Callable[[Received[T, M]], R_co]
    source: Event[T, M] | Records[T]
    description: str
    idempotent: Idempotent
    ordered: Literal["key"] | None
    concurrency: int
    timeout: timedelta
    rate: Rate | None
    retry: Retries
    remember: timedelta
    patience: timedelta
    start: Start
    is_enabled: bool
    tombstones: Tombstones = "dead-letter"
    forget: ForgetFunction | None = None

    def __post_init__(self) -> None:
        if faults := faults_of(self):
            raise ConfigurationError([f"subscriber {self.name!r}: {fault}" for fault in faults])

    def __repr__(self) -> str:
        return f"<Subscriber {self.name}>"

    def __call__(self, event: Received[T, M]) -> R_co:
        return self.function(event)

    @property
    def event_key(self) -> str:
        """Key of the source event; for the records of a fold, the name of the fold."""
        return self.source.fold if isinstance(self.source, Records) else self.source.key

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def is_repeatable(self) -> bool:
        """Whether the function may run a second time for an event although the effect of the first time is unknown."""
        return self.idempotent == "yes"

    @property
    def requires_commit(self) -> bool:
        """Whether a commit must exist before a partition can be claimed, because only the commit lists which events have begun."""
        return self.idempotent == "no"

    @property
    def timeout_ms(self) -> int:
        return milliseconds(self.timeout)

    @property
    def remember_ms(self) -> int:
        return milliseconds(self.remember)

    @property
    def patience_ms(self) -> int:
        return milliseconds(self.patience)


def subscriber(
    source: Event[T, M] | Records[T],
    *,
    idempotent: Idempotent,
    description: str,
    ordered: Literal["key"] | None = None,
    concurrency: int = 16,
    timeout: str | timedelta = "30s",
    rate: str | None = None,
    retry: Retries = Retries(),  # noqa: B008  # it is frozen
    remember: str | timedelta = "1h",
    patience: str | timedelta = "1h",
    start: Start = "earliest",
    enabled: bool = True,
    tombstones: Tombstones = "dead-letter",
    forget: ForgetFunction | None = None,
) -> Callable[[Callable[[Received[T, M]], R_co]], Subscriber[T, M, R_co]]:
    """Declare a function with one argument as a subscriber.

    Args:
        source: The event, or the records of a fold.
        idempotent: With ``yes``, the function may run twice for one event, and an event that fails is retried. With ``no``, it
            never runs twice. With ``unknown``, it runs twice only if Redis loses data.
        description: What the function does.
        ordered: With ``key``, the events of one record key run one after another, in log order. With None, events run in any order.
        concurrency: Maximum number of attempts that run at the same time in each process.
        timeout: Maximum duration of an attempt.
        rate: Maximum rate at which attempts start in all workers together, such as ``50/s``, ``100/m`` or ``1000/h``; None: no
            limit.
        retry: How often and how soon an event is retried.
        remember: How long event ids are stored for deduplication; unused if ``idempotent`` is ``yes``.
        patience: Maximum time for which an open circuit breaker keeps failures from counting as attempts of their events.
        start: Where the subscriber begins at its first start: at the first record (``earliest``) or after the last one
            (``latest``).
        enabled: Whether workers run the subscriber.
        tombstones: Whether records without a value become dead letters (``dead-letter``) or are skipped (``ignore``).
        forget: Function, ``async`` or not, that erases what the subscriber has stored of a key. ``streams-app forget`` calls it in
            its own process, within the lifespan of the catalogue, with the key as typed. It may be called again for the same key.

    Returns:
        A decorator. The subscriber that it returns can be called like the function.

    Raises:
        ConfigurationError: Raised by the decorator; lists all faults of the declaration.
    """
    faults: list[str] = []
    spans = {
        label: duration(label, value, faults)
        for label, value in (("timeout", timeout), ("remember", remember), ("patience", patience))
    }
    parsed_rate = None if rate is None else rate_of(rate, faults)

    def declare(function: Callable[[Received[T, M]], R_co]) -> Subscriber[T, M, R_co]:
        name = getattr(function, "__name__", repr(function))
        # Invalid durations are in `faults` already; valid ones replace them so that they are not reported twice.
        checked = {label: span if span or not faults else BOUNDS[label][0] for label, span in spans.items()}
        try:
            declared = Subscriber(
                name, function, source, description, idempotent, ordered, concurrency, checked["timeout"], parsed_rate, retry,
                checked["remember"], checked["patience"], start, enabled, tombstones, forget,
            )  # fmt: skip
        except ConfigurationError as error:
            raise ConfigurationError([*(f"subscriber {name!r}: {fault}" for fault in faults), *error.faults]) from None
        if faults:
            raise ConfigurationError([f"subscriber {name!r}: {fault}" for fault in faults])
        return declared

    return declare


def rate_of(text: Any, faults: list[str]) -> Rate | None:
    """Parse a rate such as ``50/s``. If it is not valid, append a fault to ``faults``, and return None."""
    match = RATE.match(text.strip()) if isinstance(text, str) else None
    if match is None or not 1 <= int(match[1]) <= MAX_EACH_PERIOD:
        faults.append(f"rate = {text!r} is not a number of 1 to {MAX_EACH_PERIOD} and a unit, as in 50/s, 100/m, 1000/h")
        return None
    return Rate(int(match[1]), PERIODS_MS[match[2]])


def faults_of(declared: Any) -> list[str]:
    """Return all faults of a declaration, one sentence each."""
    faults = [*_function_faults(declared), *description_faults(declared.description)]
    if not isinstance(declared.source, (Event, Records)):
        faults.append(f"{declared.source!r} is neither an Event nor records_of(…)")
    for label, value, allowed in (
        ("idempotent", declared.idempotent, get_args(Idempotent)),
        ("ordered", declared.ordered, (None, "key")),
        ("start", declared.start, get_args(Start)),
        ("tombstones", declared.tombstones, get_args(Tombstones)),
    ):
        if value not in allowed:
            faults.append(f"{label} = {value!r} must be {' or '.join(repr(one) for one in allowed)}")
    if type(declared.concurrency) is not int or not 1 <= declared.concurrency <= MAX_CONCURRENCY:
        faults.append(f"concurrency = {declared.concurrency!r} must be a whole number between 1 and {MAX_CONCURRENCY}")
    if not isinstance(declared.retry, Retries):
        faults.append(f"retry = {declared.retry!r} is not a Retries")
    return faults + _span_faults(declared) + _promise_faults(declared) + _forget_faults(declared.forget)


def _function_faults(declared: Any) -> list[str]:
    function = declared.function
    if not callable(function) or isinstance(function, (type, Subscriber)):
        return ["it is not a function"]
    faults = []
    if not FOLD_NAME.fullmatch(declared.name):
        faults.append(
            "the name of the function is that of the subscriber: a-z, 0-9 and _, beginning with a letter or digit, at most 63"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        faults.append("the function is a generator, whose values would be discarded")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return [*faults, "the function does not take exactly one argument, the event"]
    return faults + (annotation_faults(function, declared.source.payload) if isinstance(declared.source, (Event, Records)) else [])


def _forget_faults(function: Any) -> list[str]:
    if function is None:
        return []
    if not callable(function) or isinstance(function, (type, Subscriber)):
        return [f"forget = {function!r} is not a function"]
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return ["the function forget is a generator, which would never run"]
    try:
        inspect.signature(function).bind("")
    except TypeError:
        return ["the function forget does not take exactly one argument, the key"]
    return []


def _span_faults(declared: Any) -> list[str]:
    faults = []
    for label, (least, most) in BOUNDS.items():
        if not least <= getattr(declared, label) <= most:
            faults.append(f"{label} must be between {duration_text(milliseconds(least))} and {duration_text(milliseconds(most))}")
    if not declared.is_repeatable and LONGEST_UNREPEATABLE < declared.timeout <= BOUNDS["timeout"][1]:
        faults.append(
            f"timeout must not be longer than 5m with idempotent = {declared.idempotent!r}: a rebalance waits for running attempts"
        )
    return faults


def _promise_faults(declared: Any) -> list[str]:
    if declared.is_repeatable or not isinstance(declared.retry, Retries) or not (declared.retry.never or declared.retry.by):
        return []
    return [
        f"never and by have no effect with idempotent = {declared.idempotent!r}: every error except Retry makes a dead letter, "
        "because it is unknown what was done"
    ]


def annotation_faults(function: Callable[..., Any], payload: Any) -> list[str]:
    """Return a sentence if the annotated type of the function's argument is certainly wrong, else an empty list.

    Without this check, a wrong annotation would be noticed only when the first events become dead letters.
    """
    hint = _hint_of(function)
    called = getattr(payload, "__name__", repr(payload))
    if get_origin(hint) is Received:
        taken = get_args(hint)[0]
        if _takes(taken, payload):
            return []
        return [f"the function takes Received[{getattr(taken, '__name__', taken)}], and is given Received[{called}]"]
    if _takes(hint, Received):
        return []
    beside = ", whose .data that is" if hint is payload else ""
    return [f"the function takes {getattr(hint, '__name__', hint)}, and is given Received[{called}]{beside}"]


def _hint_of(function: Callable[..., Any]) -> Any:
    """Return the annotated type of the argument; ``Any`` if it has no annotation or the type cannot be determined."""
    if hasattr(function, "__wrapped__"):
        return Any  # the annotations belong to the wrapped function, which may receive something else
    try:
        hints = get_type_hints(function)
        (parameter,) = (name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty)
    except Exception:  # noqa: BLE001  # annotations may use names that only type checkers know, or raise anything
        return Any
    return hints.get(parameter, Any)


def _takes(hint: Any, given: Any) -> bool:
    """Return whether an argument with the annotation ``hint`` accepts a value of type ``given``, as far as can be checked."""
    if not (isinstance(hint, type) and isinstance(given, type)) or hint is Any:
        return True
    try:
        return issubclass(given, hint)
    except TypeError:  # protocols and typed dicts cannot be checked at run time
        return True
