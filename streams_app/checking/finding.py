"""What a check has found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
