"""What a check has found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streams_app.formatting import MINUTE, span


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        level: How bad it is; ``error``: a worker cannot run, or would lose events.
        text: What was found.
        advice: What to do; empty when all is well.
        is_away: Whether a server could not be asked at all, so that what else it would say is not known.
    """

    level: Level
    text: str
    advice: str = ""
    is_away: bool = False


def lasting(span_ms: int) -> str:
    """How long something takes or is kept, as findings say it: ``14 s``, ``1 h 10 min``."""
    whole_seconds, rest_ms = divmod(span_ms, 1_000)
    return f"{whole_seconds} s" if rest_ms == 0 and whole_seconds < MINUTE else span(span_ms)
