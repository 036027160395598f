"""A TLS front with a password for OpenSearch, because the jars of the tests have no security plugin."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from streams_app.embedded.ports import LOOPBACK
from tests.servers.tls import Signed


@asynccontextmanager
async def http_front(port: int, signed: Signed, user: str, password: list[str]) -> AsyncIterator[int]:
    """Accept only TLS connections for an HTTP server on ``port``; yield the port of the front.

    Args:
        port: Where the server listens.
        signed: Certificate to show.
        user: The only user.
        password: The password, in a list so that it can be changed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.certificate, signed.key)
    async with aiohttp.ClientSession(f"http://{LOOPBACK}:{port}") as client:

        async def serve(request: web.BaseRequest) -> web.Response:
            expected = base64.b64encode(f"{user}:{password[0]}".encode()).decode()
            if request.headers.get("Authorization") != f"Basic {expected}":
                return web.Response(status=401, text="Unauthorized")
            content = {"Content-Type": request.headers.get("Content-Type", "application/json")}
            body = await request.read()
            async with client.request(request.method, request.rel_url, data=body, headers=content) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

        runner = web.ServerRunner(web.Server(serve))
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0, ssl_context=context)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()
