"""The messages of errors as users see them."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as AwayError

from streams_app.embedded.ports import free_port
from streams_app.errors import text_of
from streams_app.redis_access.client import why_unreachable
from streams_app.settings import RedisSettings


@pytest.mark.parametrize(
    ("error", "text"),
    [(TimeoutError(), "TimeoutError"), (ValueError("no"), "ValueError('no')"), (KeyError(""), "KeyError(\"''\")")],
)
def test_error_without_a_text_is_shown_as_its_class(error: BaseException, text: str) -> None:
    assert text == text_of(error)


async def test_redis_outage_message_ends_without_a_full_stop() -> None:
    port = free_port()
    message = await why_unreachable(RedisSettings(url=f"redis://127.0.0.1:{port}"), AwayError("Connect call failed."))

    assert f"cannot reach Redis at redis://127.0.0.1:{port}: Connect call failed" == str(message)
