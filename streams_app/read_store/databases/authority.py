"""The authority whose certificates are trusted."""

from __future__ import annotations

import ssl
from pathlib import Path

from streams_app.errors import ConfigurationError


def trusting(cafile: Path, setting: str) -> ssl.SSLContext:
    """Trusts one authority and no other.

    Raises:
        ConfigurationError: The file cannot be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=str(cafile))
    except OSError as error:  # of which an SSLError is one
        raise ConfigurationError([f"{setting}: cannot read {cafile}: {error}"]) from error
