"""Result of a check: a finding with its severity and advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streams_app.formatting import MINUTE, span


class Level(StrEnum):
    """Severity of a finding: ``ok``, ``warning``, or ``error`` if a worker cannot run or would lose events."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: severity, description and advice.

    Attributes:
        advice: What the operator has to do; empty: nothing.
        is_away: Whether Kafka or Redis cannot be reached, so that the checks that need it are skipped.
    """

    level: Level
    text: str
    advice: str = ""
    is_away: bool = False


def lasting(span_ms: int) -> str:
    """Return a duration as text for a finding, such as ``14 s`` or ``1 h 10 min``."""
    whole_seconds, rest_ms = divmod(span_ms, 1_000)
    return f"{whole_seconds} s" if rest_ms == 0 and whole_seconds < MINUTE else span(span_ms)
