"""What the options of ``streams-app tune`` take: durations, moments, a share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from streams_app.formatting import milliseconds, parse_duration, parse_moment

EARLIEST: Final = "earliest"


class DurationType(click.ParamType):
    """``15m``: a duration, in ms."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click."""
        try:
            found = milliseconds(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < 1:
            self.fail(f"{value!r} is shorter than 1ms", param, ctx)
        return found


class DurationsType(DurationType):
    """``1s,10s,60s``: durations, in ms."""

    name = "durations"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        return tuple(super(DurationsType, self).convert(part.strip(), param, ctx) for part in value.split(",") if part.strip())


class ShareType(click.ParamType):
    """``0.95``: a part of all, less than all."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < 1:  # nor is NaN
            self.fail(f"{value!r} is no share that can be folded: write a number from 0 to below 1, as in 0.95", param, ctx)
        return found


class MomentType(click.ParamType):
    """``-24h``, an ISO time, or ms since 1970; converted when the clock is read."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[[int], int | None]:
        """See click."""
        if value == EARLIEST and param is not None and param.name == "begin":
            return lambda _: None
        try:
            parse_moment(value, 0)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return lambda now_ms: parse_moment(value, now_ms)
