"""Whether a server speaks TLS at all: what a client that was not let in wants to know before it blames anybody."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from streams_app.errors import ConfigurationError

PROBE_SECONDS: Final = 3.0


async def speaks_tls(host: str, port: int) -> bool:
    """Tries a TLS handshake without looking at the certificate; sends nothing and trusts nothing.

    Args:
        host: Host of the server.
        port: Port of the server.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError, TimeoutError):  # what it says of the end does not matter
        async with asyncio.timeout(PROBE_SECONDS):
            await writer.wait_closed()
    return True


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, the nearest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def tls_fault(error: BaseException) -> str | None:
    """What TLS complains of, in a few words; None where it is not the fault.

    Args:
        error: Error of a client library, which may have wrapped that of TLS or kept only its text.
    """
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate is not trusted: {cause.verify_message}"
    text = " ".join(str(cause) for cause in causes(error))
    for mark, meaning in _MARKS.items():
        if mark in text:
            return meaning
    return None


def trust_text(setting: str, cafile: Path | None) -> str:
    """Whose certificates are trusted, for a message about one that is not."""
    return f"{setting} = {cafile}" if cafile else f"{setting} is not set, so only the authorities of the system are trusted"


NO_TLS: Final = "the server does not speak TLS there"

_MARKS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "the certificate is not trusted",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "CERTIFICATE_REQUIRED": "the server wants a client certificate",
    "HANDSHAKE_FAILURE": "the handshake failed: perhaps the server wants a client certificate",
    "UNKNOWN_CA": "the server does not trust our client certificate",
}
"""Part of the text of an error of OpenSSL → what it means."""


def trusting(cafile: Path, setting: str) -> ssl.SSLContext:
    """Trusts one authority and no other.

    Raises:
        ConfigurationError: The file cannot be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=str(cafile))
    except OSError as error:  # of which an SSLError is one
        raise ConfigurationError([f"{setting}: cannot read {cafile}: {error}"]) from error
