"""Hides group keys and values from those who may see structure only: ``console.hide_values``."""

from __future__ import annotations

import hashlib
import hmac

from streams_app.settings import Settings


class Hidden:
    """Replaces keys by hashes, if the settings say so.

    The same key has the same hash on all pages. The hash depends on the application and on the console's token, so that keys that
    are easily guessed cannot be recognised by anybody who does not have both.
    """

    def __init__(self, settings: Settings) -> None:
        self.is_on = settings.console.hide_values
        self._key = f"{settings.app_id}\0{settings.console.token or ''}".encode() if self.is_on else b""

    def key(self, shown: str) -> str:
        """Return a key as it is shown."""
        if not self.is_on:
            return shown
        return "#" + hmac.new(self._key, shown.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:12]
