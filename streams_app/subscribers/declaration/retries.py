"""Retry rule of a subscriber: how often and how soon an event is retried (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from streams_app.errors import ConfigurationError
from streams_app.formatting import milliseconds, parse_duration, span
from streams_app.subscribers.declaration.received import Retry

MAX_ATTEMPTS: Final = 1_000
LARGEST_FACTOR: Final = 100.0
LONGEST_IN_ALL: Final = timedelta(hours=1)
"""Maximum sum of the retry delays of one event. While an event waits, the low watermark cannot pass it, and the topic has to retain
all later events."""


@dataclass(frozen=True, slots=True, init=False)
class Retries:
    """Retry rule of a subscriber: by default 8 attempts with delays of 1 s, 3 s, 9 s … 5 m, about 11 minutes in all.

    Attributes:
        attempts: Maximum number of attempts for one event.
        first: Maximum delay after the first attempt.
        factor: Ratio of each delay to the one before it.
        longest: Maximum delay between attempts. It is reduced if all delays together would exceed an hour, see :attr:`longest_ms`.
        never: Exception classes after which the event becomes a dead letter at once.
        by: Rules that replace this one after errors of some exception classes.
    """

    attempts: int
    first: timedelta
    factor: float
    longest: timedelta
    never: tuple[type[BaseException], ...]
    by: Mapping[type[BaseException], Retries] = field(hash=False)
    longest_ms: int = field(init=False, repr=False, compare=False)
    """Effective maximum delay between attempts, in ms: ``longest``, or less if all delays together would exceed an hour."""

    def __init__(
        self,
        attempts: int = 8,
        first: str | timedelta = "1s",
        factor: float = 3.0,
        longest: str | timedelta = "5m",
        never: tuple[type[BaseException], ...] = (),
        by: Mapping[type[BaseException], Retries] = MappingProxyType({}),
    ) -> None:
        """Declare a rule.

        Raises:
            ConfigurationError: The rule is not valid; the error lists all faults.
        """
        faults: list[str] = []
        rules: Any = by  # users without a type checker may pass anything
        given = {
            "attempts": attempts,
            "first": duration("first", first, faults),
            "factor": factor,
            "longest": duration("longest", longest, faults),
            "never": tuple(never) if isinstance(never, (tuple, list)) else (never,),
            "by": MappingProxyType(dict(rules) if isinstance(rules, Mapping) else {}),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "longest_ms", milliseconds(self.longest))
        faults += _faults(self, are_spans=not faults)
        if not isinstance(rules, Mapping):
            faults.append(f"by: {rules!r} is not a mapping from exception classes to Retries")
        if faults:
            raise ConfigurationError([f"retries: {fault}" for fault in faults])
        object.__setattr__(self, "longest_ms", _longest_ms(self))

    @property
    def first_ms(self) -> int:
        """Maximum delay after the first attempt, in ms."""
        return milliseconds(self.first)

    @property
    def total_ms(self) -> int:
        """Maximum sum of all delays between the attempts of one event, in ms."""
        return round(sum(self.max_ms(attempt) for attempt in range(1, self.attempts)))

    def max_ms(self, attempt: int) -> float:
        """Return the maximum delay after an attempt, in ms; the first attempt has number 1.

        ``execution/retry_decision.py`` adds the jitter (``delay_ms``) and decides between a retry and a dead letter.
        """
        # The exponent is limited because the power for a thousand attempts would overflow a double.
        return min(self.longest_ms, self.first_ms * self.factor ** min(attempt - 1, 64))

    def rule_for(self, error: BaseException) -> Retries | None:
        """Return the rule for an error; None if the error must not be retried.

        The class of the error is looked up in ``never`` and ``by``, and then each of its base classes, the nearest one first. If
        none of them is found, this rule applies. An entry for a base class of :class:`Retry`, such as ``Exception``, does not apply
        to ``Retry``, because a function that raises ``Retry`` has had no effect.
        """
        for kind in type(error).__mro__:
            if kind in self.never:
                return None
            if kind in self.by:
                return self.by[kind]
            if kind is Retry:
                break
        return self


def duration(label: str, value: Any, faults: list[str]) -> timedelta:
    """Parse a duration such as ``30s``. If it is not valid, return 0, and append a fault that begins with ``label``."""
    try:
        parsed = parse_duration(value)
    except ValueError as error:
        faults.append(f"{label}: {error}")
        return timedelta(0)
    return parsed if isinstance(parsed, timedelta) else timedelta(0)


def _faults(rule: Any, *, are_spans: bool) -> list[str]:
    """Return the faults of a rule; ``are_spans`` says whether the durations of the rule are valid, so that they can be compared."""
    faults = []
    if type(rule.attempts) is not int or not 1 <= rule.attempts <= MAX_ATTEMPTS:
        faults.append(f"attempts = {rule.attempts!r} must be a whole number between 1 and {MAX_ATTEMPTS}")
    if not isinstance(rule.factor, (int, float)) or not 1 <= rule.factor <= LARGEST_FACTOR:
        faults.append(f"factor = {rule.factor!r} must be between 1 and {LARGEST_FACTOR:g}")
    if are_spans and not timedelta(milliseconds=1) <= rule.first <= rule.longest:
        faults.append("first must be at least 1ms and not longer than longest")
    if are_spans and not faults and (least_ms := (rule.attempts - 1) * rule.first_ms) > milliseconds(LONGEST_IN_ALL):
        faults.append(
            f"all {rule.attempts} attempts take at least {span(least_ms)}, but 1 h is the maximum: "
            "use fewer attempts or shorter delays"
        )
    return faults + _error_faults(rule)


def _longest_ms(rule: Retries) -> int:
    """Return ``longest`` in ms, lowered where necessary so that all delays together do not exceed an hour."""
    left_ms: float = milliseconds(LONGEST_IN_ALL)
    for attempt in range(1, rule.attempts):
        share_ms = left_ms / (rule.attempts - attempt)
        delay_ms = rule.max_ms(attempt)
        if delay_ms > share_ms:
            return max(rule.first_ms, int(share_ms) // 1000 * 1000)
        left_ms -= delay_ms
    return rule.longest_ms


def _error_faults(rule: Any) -> list[str]:
    faults = []
    for label, kinds in (("never", rule.never), ("by", tuple(rule.by))):
        faults += [
            f"{label}: {kind!r} is not an exception class"
            for kind in kinds
            if not (isinstance(kind, type) and issubclass(kind, BaseException))
        ]
    faults += [f"{kind.__name__} is in never and in by" for kind in rule.never if kind in rule.by]
    for kind, other in rule.by.items():
        if not isinstance(other, Retries):
            faults.append(f"by: {kind!r} has no Retries")
        elif other.by or other.never:
            faults.append(f"by: the Retries of {kind!r} cannot have never or by of their own")
    return faults
