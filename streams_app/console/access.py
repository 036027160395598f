"""Who may see the console, and whose forms are obeyed: sessions of those who had the token, and tokens of forms."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from typing import Final, Literal

from streams_app.clock import Clock

COOKIE: Final = "streams_app_console"
SESSION_MS: Final = 12 * 3_600_000
MAX_TOKEN: Final = 4_096
"""Maximum number of characters of a token that is compared."""

WRONG_OF_ADDRESS: Final = 10
"""Maximum number of wrong tokens of one address within :data:`WRONG_MS`."""

MOST_WRONG: Final = 300
"""The same of all addresses together."""

WRONG_MS: Final = 60_000


class Sessions:
    """Checks tokens, and makes and checks the cookies of those who had the right one.

    A cookie has the end of its session, signed with the token: sessions need no memory, survive a restart, and end when the token
    changes.
    """

    def __init__(self, token: str, clock: Clock) -> None:
        self._token = token.encode()
        self._key = hashlib.sha256(b"streams_app console session\0" + self._token).digest()
        self._clock = clock
        self._wrong: deque[tuple[int, str]] = deque()

    def is_right(self, token: str) -> bool:
        """Compare a token in constant time."""
        return hmac.compare_digest(token[:MAX_TOKEN].encode("utf-8", "surrogateescape"), self._token)

    def may_attempt(self, address: str) -> bool:
        """Return whether an address may try a token now; of :meth:`failed` tries, only those of the last minute count."""
        now_ms = self._clock.monotonic_ms()
        while self._wrong and now_ms - self._wrong[0][0] >= WRONG_MS:
            self._wrong.popleft()
        return len(self._wrong) < MOST_WRONG and sum(other == address for _, other in self._wrong) < WRONG_OF_ADDRESS

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        self._wrong.append((self._clock.monotonic_ms(), address))

    def cookie(self) -> str:
        """Return the value of the cookie of a new session."""
        end = str(self._clock.now_ms() + SESSION_MS)
        return f"{end}.{self._signed(end)}"

    def is_valid(self, cookie: str) -> bool:
        """Return whether a cookie is of a session that has not ended."""
        end, _, signature = cookie[:MAX_TOKEN].partition(".")
        if not hmac.compare_digest(self._signed(end).encode(), signature.encode("utf-8", "surrogateescape")):
            return False
        return self._clock.now_ms() < int(end)

    def _signed(self, end: str) -> str:
        return hmac.new(self._key, end.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


FORM_COOKIE: Final = "streams_app_console_form"
FORM_MS: Final = 3_600_000
"""A form is valid for at least this time, and at most twice as long."""

MAX_COOKIE: Final = 200

FormFault = Literal["", "missing", "expired", "foreign"]


class Forms:
    """Makes and checks the tokens of forms, so that no other web site can send a form in the name of a browser's user.

    A browser has a random cookie, and each form a signature of that cookie, of the session and of its end. The key of the signature
    is forgotten when the console ends: forms of a former process have expired.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)

    @staticmethod
    def new_browser() -> str:
        """Return a cookie for a browser that has none."""
        return secrets.token_urlsafe(24)

    def token(self, browser: str, session: str) -> str:
        """Return the token of a form; the same within an hour, so that a page that is sent again has not changed."""
        end = str((self._clock.now_ms() // FORM_MS + 2) * FORM_MS)
        return f"{end}.{self._signed(end, browser, session)}"

    def fault(self, token: str, browser: str, session: str) -> FormFault:
        """Return why a form is not obeyed; empty if it is."""
        if not token or not browser:
            return "missing"
        end, _, signature = token[:MAX_TOKEN].partition(".")
        signed = self._signed(end, browser[:MAX_COOKIE], session)
        if not hmac.compare_digest(signed.encode(), signature.encode("utf-8", "surrogateescape")):
            return "foreign"
        return "" if self._clock.now_ms() < int(end) else "expired"

    def _signed(self, end: str, browser: str, session: str) -> str:
        text = "\0".join((end, browser, session)).encode("utf-8", "surrogateescape")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
