"""Requests that no browser sends, as bytes, and how an HTTP server of the application answers them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass
from typing import Any

import pytest

END = b"\r\nHost: x\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class OddRequest:
    """Bytes that a client sends, and the answer that it gets.

    Attributes:
        what: What is odd about the request.
        sent: The bytes; the page that they request is ``/metrics``.
        status: Status of the answer.
        error: Part of the error in the answer.
    """

    what: str
    sent: bytes
    status: int
    error: str = ""


ODD = [
    OddRequest("long path", b"GET /" + b"a" * 9_000 + b" HTTP/1.1" + END, 414, "at most 8190 bytes"),
    OddRequest("long query", b"GET /metrics?" + b"a" * 9_000 + b" HTTP/1.1" + END, 414, "at most 8190 bytes"),
    OddRequest("endless URL", b"GET /" + b"a" * 300_000, 414, "at most 8190 bytes"),
    OddRequest("long header", b"GET /metrics HTTP/1.1\r\nX-A: " + b"a" * 9_000 + END, 431, "at most 8192 bytes"),
    OddRequest("long header name", b"GET /metrics HTTP/1.1\r\n" + b"a" * 9_000 + b": x" + END, 431, "at most 8192 bytes"),
    OddRequest("many headers", b"GET /metrics HTTP/1.1\r\n" + b"X-A: b\r\n" * 200 + END[2:], 431, "at most 128"),
    OddRequest("no host", b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n", 400, "not valid"),
    OddRequest("bad header", b"GET /metrics HTTP/1.1\r\nX A: b" + END, 400, "not valid"),
    OddRequest("header without a colon", b"GET /metrics HTTP/1.1\r\nnothing" + END, 400, "not valid"),
    OddRequest("two lengths", b"GET /metrics HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2" + END, 400, "not valid"),
    OddRequest("bad length", b"GET /metrics HTTP/1.1\r\nContent-Length: -1" + END, 400, "not valid"),
    OddRequest("bad coding", b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: what" + END, 400, "not valid"),
    OddRequest("unknown expectation", b"GET /metrics HTTP/1.1\r\nExpect: nonsense" + END, 417, "Expectation Failed"),
    OddRequest("unknown method", b"FETCH /metrics HTTP/1.1" + END, 400, "method"),
    OddRequest("method in lower case", b"get /metrics HTTP/1.1" + END, 400, "method"),
    OddRequest("wrong method", b"DELETE /metrics HTTP/1.1" + END, 405, "Method Not Allowed"),
    OddRequest("trace", b"TRACE /metrics HTTP/1.1" + END, 405, "Method Not Allowed"),
    OddRequest("connect", b"CONNECT x:80 HTTP/1.1" + END, 404, ""),
    OddRequest("asterisk", b"OPTIONS * HTTP/1.1" + END, 404, ""),
    OddRequest("URL with a bad port", b"GET http://a:b/metrics HTTP/1.1" + END, 400, "URL"),
    OddRequest("bad chunk", b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked" + END + b"zz\r\nabcd\r\n", 400, "not valid"),
    OddRequest("bad compression", b"GET /metrics HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 4" + END + b"abcd", 200),
    OddRequest("binary header", b"GET /metrics HTTP/1.1\r\nX-A: \xff\xfe\r\nCookie: \xff=\xfe; a=\"; =" + END, 200),
    OddRequest("binary URL", b"GET /\xff\xfe\x00 HTTP/1.1" + END, 400, ""),
    OddRequest("bad version", b"GET /metrics HTTP/9.9" + END, 400, "not valid"),
    OddRequest("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, ""),
    OddRequest("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2, 400, "without TLS"),
    OddRequest("garbage", bytes(range(256)) * 40, 400, ""),
    OddRequest("zeros", bytes(20_000), 400, ""),
    OddRequest("no path", b"GET / /metrics HTTP/1.1" + END, 400, ""),
    OddRequest("unknown page", b"GET /nothing/%00%ff%F0%9F HTTP/1.1" + END, 404, "Not Found"),
    OddRequest("upgrade and garbage", b"GET /a HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\nHost: x\r\n\r\n\xff", 404),
]  # fmt: skip


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors in the log."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def answer_to(port: int | None, sent: bytes) -> tuple[int, Any]:
    """Send bytes on a new connection; return the status of the answer, and its JSON or bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
    writer.close()
    return int(head.split()[1]), json.loads(body) if "content-type: application/json" in head else body
