"""Checks whether a server speaks TLS, to explain failed connections."""

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
    """Return whether a TLS handshake with a server succeeds within a few seconds.

    The certificate is not verified, and no data is sent. If the server cannot be reached, return False.
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
    with suppress(OSError, TimeoutError):  # an error while closing does not matter
        async with asyncio.timeout(PROBE_SECONDS):
            await writer.wait_closed()
    return True


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then its cause or context, then the cause of that, and so on; nothing for None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def tls_fault(error: BaseException) -> str | None:
    """Return a description of the TLS fault that caused an error; None if no known TLS fault was the cause.

    A client library may have wrapped the TLS error, or kept only its text.
    """
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate is not trusted: {cause.verify_message}"
    text = " ".join(str(cause) for cause in causes(error))
    for phrase, meaning in _PHRASES.items():
        if phrase in text:
            return meaning
    return None


def trust_text(setting: str, cafile: Path | None) -> str:
    """Return a description of the trusted certificate authorities, for a message about an untrusted certificate."""
    return f"{setting} = {cafile}" if cafile else f"{setting} is not set, so only the authorities of the system are trusted"


NO_TLS: Final = "the server does not speak TLS there"

_PHRASES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "the certificate is not trusted",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "CERTIFICATE_REQUIRED": "the server requires a client certificate",
    "HANDSHAKE_FAILURE": "the handshake failed: perhaps the server requires a client certificate",
    "UNKNOWN_CA": "the server does not trust our client certificate",
}
"""Maps a part of the text of an OpenSSL error to a description of the fault, for messages."""


def trusting(cafile: Path, setting: str) -> ssl.SSLContext:
    """Create a TLS context that trusts only the certificate authorities in a file.

    Raises:
        ConfigurationError: The file cannot be read, or has no certificate; the fault begins with the name of the setting.
    """
    try:
        return ssl.create_default_context(cafile=str(cafile))
    except OSError as error:  # SSLError is a subclass
        raise ConfigurationError([f"{setting}: cannot read {cafile}: {error}"]) from error
