"""Requests that are no valid HTTP, and handlers that fail: the answer is JSON, and the log does not grow with each of them."""

from __future__ import annotations

import pytest
from aiohttp import web

from streams_app.health.http import HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.settings import HttpSettings
from tests.helpers.manual_clock import ManualClock
from tests.integration.health.asking import Start, get
from tests.integration.health.odd_requests import ODD, OddRequest, answer_to, errors_of


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.what)
async def test_odd_request_gets_json_and_no_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture, odd: OddRequest
) -> None:
    status, answer = await answer_to(start().port, odd.sent)

    assert odd.status == status, answer
    assert status == 200 or odd.error in answer["error"]
    assert [] == errors_of(caplog)


async def test_failing_handler_is_logged_once_and_answered_as_json(
    status: Status, metrics: Metrics, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise KeyError("a fault")

    async def close() -> None:
        pass

    server = HttpServer(HttpSettings(port=0), status, metrics, clock)
    server.add("/failing", fail, "", close)
    server.start()
    try:
        answers = [await get(f"{server.url}/failing") for _ in range(3)]
    finally:
        server.stop()

    assert [(500, {"error": "the server failed to answer: its log has the reason"})] * 3 == answers
    assert 1 == len(errors_of(caplog))
