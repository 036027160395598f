"""Quiet periods that are not fixed: one that is read from each event, and one that sets itself (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from streams_app.formatting import ROUND_MS, Duration, duration_text, milliseconds, parse_duration

KNEE: Final = "knee"
TARGET: Final = "target_ratio"


class QuietPeriod(BaseModel):
    """A quiet period that is read from each event; the last event of a group determines how long the group must be quiet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str | Callable[[Any], Any]
    """Field or dotted path of the events with a duration as text, ``90s``, or a number of seconds. In Python, also a function from
    the event to such a value, a timedelta, or None."""
    default: Duration
    """Quiet period of events in which the field is missing or null."""
    at_most: Duration
    """Maximum quiet period; events with a longer one are rejected."""

    if TYPE_CHECKING:

        def __init__(self, *, field: str | Callable[[Any], Any], default: str | timedelta, at_most: str | timedelta) -> None: ...

    def __str__(self) -> str:
        name = self.field if isinstance(self.field, str) else "a function"
        default, at_most = (duration_text(milliseconds(one)) for one in (self.default, self.at_most))
        return f"by {name}, {default} by default, {at_most} at most"

    def faults(self) -> list[str]:
        """Return what is wrong with the path and the durations; the setting ``max_hold`` is not considered."""
        faults = []
        if self.default < timedelta(milliseconds=1):
            faults.append("quiet_period.default must be at least 1ms")
        elif self.default > self.at_most:
            faults.append("quiet_period.default must not be longer than at_most")
        if isinstance(self.field, str) and not all(self.field.split(".")):
            faults.append("quiet_period.field holds an empty path")
        return faults


def _checked_auto(auto: Any) -> Any:
    """Check the aim of a quiet period that sets itself, and convert the target to a float."""
    if auto == KNEE:
        return auto
    if isinstance(auto, Mapping) and list(auto) == [TARGET]:
        target = auto[TARGET]
        if type(target) not in (int, float) or not 0 < target < 1:
            raise ValueError(f"{TARGET} must be a number above 0 and below 1, such as 0.95, not {target!r}")
        return {TARGET: float(target)}
    if isinstance(auto, Mapping) and "max_latency" in auto:
        raise ValueError(f'max_latency is no aim: write auto = "{KNEE}", and limit the latency by at_most and max_hold')
    given = [auto] if isinstance(auto, str) else list(auto) if isinstance(auto, Mapping) else []
    near = [match for one in given for match in difflib.get_close_matches(str(one), [KNEE, TARGET]) if one != TARGET]
    raise ValueError(f'must be "{KNEE}" or {{{TARGET} = 0.95}}{f", did you mean {near[0]}?" if near else ""}')


class AutoQuietPeriod(BaseModel):
    """A quiet period that sets itself, between two limits, by the gaps between the events of each partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    auto: Annotated[Literal["knee"] | dict[Literal["target_ratio"], float], BeforeValidator(_checked_auto)]
    """``"knee"``: as long as twice the quiet period saves at least one record per hundred events; ``{target_ratio = 0.95}``: the
    shortest one with which at most 5 records per 100 events are emitted."""
    at_least: Duration
    """Minimum quiet period."""
    default: Duration | None = None
    """Quiet period at the beginning, and if Redis has lost its data; none: a round duration near the geometric mean of ``at_least``
    and ``at_most``."""
    at_most: Duration
    """Maximum quiet period."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            auto: Literal["knee"] | Mapping[Literal["target_ratio"], float],
            at_least: str | timedelta,
            at_most: str | timedelta,
            default: str | timedelta | None = ...,
        ) -> None: ...

    def __str__(self) -> str:
        aim = KNEE if self.target_ratio is None else f"{TARGET} {self.target_ratio:g}"
        at_least, default, at_most = map(duration_text, (milliseconds(self.at_least), self.default_ms, milliseconds(self.at_most)))
        return f"sets itself by {aim}, {at_least} at least, {default} at first, {at_most} at most"

    @property
    def target_ratio(self) -> float | None:
        """The folding ratio to reach; None for the knee."""
        return None if isinstance(self.auto, str) else self.auto[TARGET]

    @property
    def default_ms(self) -> int:
        """The setting ``default`` in ms; if it is not given, the longest round duration up to the geometric mean of the limits."""
        if self.default is not None:
            return milliseconds(self.default)
        at_least_ms, at_most_ms = milliseconds(self.at_least), milliseconds(self.at_most)
        mean_ms = sqrt(max(0, at_least_ms) * max(0, at_most_ms))
        return max(at_least_ms, *(round_ms for round_ms in ROUND_MS if round_ms <= mean_ms), 0)

    def faults(self) -> list[str]:
        """Return what is wrong with the limits; the setting ``max_hold`` is not considered."""
        at_least_ms, at_most_ms = milliseconds(self.at_least), milliseconds(self.at_most)
        if at_least_ms < 1:
            return ["quiet_period.at_least must be at least 1ms"]
        if at_least_ms > at_most_ms:
            return ["quiet_period.at_least must not be longer than at_most"]
        if not at_least_ms <= self.default_ms <= at_most_ms:
            return ["quiet_period.default must be from at_least to at_most"]
        return []


def checked_quiet_period(value: Any) -> Any:
    """Convert the setting ``quiet_period`` to a duration, or a table to the rule that determines the quiet period."""
    if isinstance(value, QuietPeriod | AutoQuietPeriod):
        return value
    if not isinstance(value, Mapping):
        return parse_duration(value)
    if "auto" in value and "field" in value:
        raise ValueError("auto and field exclude each other: either the quiet period sets itself, or each event sets it")
    is_auto = "auto" in value or ("at_least" in value and "field" not in value)
    try:
        return AutoQuietPeriod(**value) if is_auto else QuietPeriod(**value)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc'][:1]))}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors()]
        raise ValueError("; ".join(dict.fromkeys(faults))) from error
