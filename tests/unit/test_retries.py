"""The loop that repeats a call until it succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from streams_app.retries import retried


def failing(*errors: Exception) -> Callable[[], Awaitable[str]]:
    left = list(errors)

    async def step() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return step


async def test_step_is_repeated_after_each_of_its_errors_and_its_result_returned() -> None:
    seen: list[OSError] = []

    async def at_once(error: OSError) -> float:
        seen.append(error)
        return 0

    first, second = TimeoutError("a"), ConnectionError("b")
    assert "done" == await retried(failing(first, second), (TimeoutError, ConnectionError), at_once)
    assert [first, second] == seen


async def test_other_error_ends_the_retries() -> None:
    async def at_once(error: OSError) -> float:
        return 0

    with pytest.raises(ValueError, match="of the step"):
        await retried(failing(OSError("away"), ValueError("of the step")), OSError, at_once)


async def test_handler_that_raises_ends_the_retries() -> None:
    async def give_up(error: OSError) -> float:
        raise LookupError("given up") from error

    with pytest.raises(LookupError, match="given up"):
        await retried(failing(OSError("away")), OSError, give_up)
