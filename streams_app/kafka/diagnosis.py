"""Diagnoses a failed connection to Kafka: distinguishes faults of network, TLS and passwords, and names the setting to check.

aiokafka only logs the reason and raises the same ``Unable to bootstrap`` for all these faults. So after a failure, each server is
probed on another connection. If the settings are certainly wrong, the process exits with code 1, otherwise with 75.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import Any, Final, NamedTuple

from aiokafka.conn import create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.protocol.admin import SaslHandShakeRequest

from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from streams_app.kafka.client import client_options
from streams_app.kafka.oauth import TokenUnavailableError, rejected_text
from streams_app.settings import KafkaSettings
from streams_app.tls import NO_TLS, causes, speaks_tls, tls_fault, trust_text

ASK_SECONDS: Final = 5.0
NOT_ALLOWED: Final = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


class ServerFinding(NamedTuple):
    """The result of probing one server. If it is certain, the settings are wrong, and a retry cannot help."""

    text: str
    is_certain: bool


async def why_unreachable(kafka: KafkaSettings, error: BaseException) -> StreamsAppError:
    """Return an error that explains why a client could not connect.

    Returns:
        A :class:`~streams_app.errors.ConfigurationError` if a right is missing, or a server shows that the settings are wrong and
        no server grants access; else a :class:`~streams_app.errors.TryAgainError`.
    """
    servers = [server.strip() for server in kafka.bootstrap_servers.split(",")]
    where = f"cannot reach Kafka at {kafka.bootstrap_servers}"
    for cause in causes(error):
        if isinstance(cause, NOT_ALLOWED):
            return not_allowed(kafka, cause)
    if isinstance(error, TimeoutError):
        return TryAgainError(f"{where}: no answer. Is it running?")  # a silent server gives no information about passwords
    findings = await asyncio.gather(*(_check_server(kafka, server) for server in servers))
    certain = next((found for found in findings if found and found.is_certain), None)
    if certain and None not in findings:
        return ConfigurationError([f"{where}: {certain.text}"])
    detail = next((found.text for found in findings if found), str(error) or type(error).__name__)
    return TryAgainError(f"{where}: {detail}")


def not_allowed(kafka: KafkaSettings, error: BaseException) -> ConfigurationError:
    """Return the error for a server that accepts the connection but denies a request."""
    who = f"user {kafka.sasl_username!r}" if kafka.sasl_username else "this client"
    kind = {TopicAuthorizationFailedError: "topic", GroupAuthorizationFailedError: "group"}.get(type(error), "cluster")
    found = [name for part in error.args for name in ([part] if isinstance(part, str) else sorted(map(str, part)))]
    what = f"{kind} {', '.join(found)}".strip()
    text = f"Kafka at {kafka.bootstrap_servers} does not allow {who} what is needed on {what}"
    return ConfigurationError([f"{text}; grant it there (ACL): `streams-app check` names the rights that a worker lacks"])


async def _check_server(kafka: KafkaSettings, server: str) -> ServerFinding | None:
    """Connect to one server with the settings; return why that fails, or None if the server grants access."""
    host, _, number = server.rpartition(":")
    host, port = host.strip("[]"), int(number)
    try:
        mechanisms = await _probe(kafka, host, port)
    except (KafkaError, OSError, TimeoutError) as error:
        return await _meaning(kafka, host, port, error)
    if mechanisms is not None:
        wanted = "a token" if mechanisms == ["OAUTHBEARER"] else "a password"
        text = f"the server requires {wanted} (it offers {', '.join(mechanisms) or 'no mechanism'}): kafka.security_protocol"
        return ServerFinding(f"{text} = {kafka.security_protocol}", is_certain=True)
    return None


async def _probe(kafka: KafkaSettings, host: str, port: int) -> list[str] | None:
    """Connect to a server; return its SASL mechanisms if it requires a password and none is configured, else None."""
    options = {name: value for name, value in client_options(kafka).items() if name != "bootstrap_servers"}
    async with asyncio.timeout(ASK_SECONDS):
        connection: Any = await create_conn(host, port, request_timeout_ms=int(ASK_SECONDS * 1000), **options)
    try:
        if kafka.security_protocol.startswith("SASL_"):
            return None
        reply = await _within(connection.send(SaslHandShakeRequest("PLAIN")))
        wants = for_code(reply.error_code) is not IllegalSaslStateError and bool(reply.enabled_mechanisms)
        return list(reply.enabled_mechanisms) if wants else None
    except (KafkaError, OSError, TimeoutError):
        return None  # the server accepted the connection, but does not support the request
    finally:
        connection.close()


async def _within(call: Awaitable[Any]) -> Any:
    async with asyncio.timeout(ASK_SECONDS):
        return await call


async def _meaning(kafka: KafkaSettings, host: str, port: int, error: BaseException) -> ServerFinding:
    if isinstance(error, TokenUnavailableError):
        return ServerFinding(str(error), is_certain=error.is_certain)
    if isinstance(error, SaslAuthenticationFailed) and kafka.sasl_mechanism == "OAUTHBEARER":
        return await _rejected_token(kafka, error)
    fault = _password_fault(kafka, error) or await _tls_fault(kafka, host, port, error)
    if fault is not None:
        return ServerFinding(fault, is_certain=True)
    return ServerFinding(_reach_text(host, port, error), is_certain=False)


async def _rejected_token(kafka: KafkaSettings, error: SaslAuthenticationFailed) -> ServerFinding:
    try:
        text, is_certain = await asyncio.get_running_loop().run_in_executor(None, rejected_text, kafka, error)
    except TokenUnavailableError as unavailable:
        return ServerFinding(str(unavailable), is_certain=unavailable.is_certain)
    return ServerFinding(text, is_certain=is_certain)


def _password_fault(kafka: KafkaSettings, error: BaseException) -> str | None:
    if isinstance(error, UnsupportedSaslMechanismError):
        return f"kafka.sasl_mechanism = {kafka.sasl_mechanism} is not offered: {error}"
    if isinstance(error, SaslAuthenticationFailed):
        text = f"the password of user {kafka.sasl_username!r} was rejected: kafka.sasl_username, kafka.sasl_password_file"
        return f"{text} = {kafka.sasl_password_file}"
    if isinstance(error, IllegalSaslStateError):
        return f"the server requires no password: kafka.security_protocol = {kafka.security_protocol}"
    return None


async def _tls_fault(kafka: KafkaSettings, host: str, port: int, error: BaseException) -> str | None:
    if kafka.security_protocol not in ("SSL", "SASL_SSL"):
        is_tls = await speaks_tls(host, port)
        return f"the server speaks TLS there: kafka.security_protocol = {kafka.security_protocol}" if is_tls else None
    fault = tls_fault(error)
    if fault is None and await _speaks_plainly(host, port):
        fault = NO_TLS
    if fault is None or fault == NO_TLS:
        return fault and f"{fault}: kafka.security_protocol = {kafka.security_protocol}"
    if "client certificate" in fault:
        return f"{fault}: kafka.ssl_certfile = {kafka.ssl_certfile or 'not set'}"
    return f"{fault}: {trust_text('kafka.ssl_cafile', kafka.ssl_cafile)}"


def _reach_text(host: str, port: int, error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        found = f"no host is called {host!r}"
    elif isinstance(error, ConnectionRefusedError):
        found = f"nothing listens at {host}:{port}"
    elif isinstance(error, TimeoutError):
        found = f"no answer from {host}:{port} within {ASK_SECONDS:g} s"
    else:
        found = str(error) or type(error).__name__
    return f"{found}. Is it running, and is kafka.bootstrap_servers right?"


async def _speaks_plainly(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(ASK_SECONDS):
            connection: Any = await create_conn(host, port, request_timeout_ms=int(ASK_SECONDS * 1000))
    except (KafkaError, OSError, TimeoutError):
        return False
    connection.close()
    return True
