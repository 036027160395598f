"""Tokens that say which pages a browser may see: JSON Web Tokens (HS256), signed by the application, in a cookie."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from streams_app.clock import Clock
from streams_app.errors import ConfigurationError
from streams_app.settings.live import LiveServer

logger = logging.getLogger(__name__)

COOKIE: Final = "streams_app_live"
ALGORITHM: Final = "HS256"
LONGEST_MS: Final = 24 * 3_600_000
SKEW_MS: Final = 60_000
"""By how much the clocks of the application and the hub may differ."""

MOST_SUB_BYTES: Final = 256


class TokenError(Exception):
    """A token that is not accepted; the message says why, and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class PageToken:
    """What a token allows.

    Attributes:
        pages: Names of pages; one that ends with ``*`` stands for all that begin so.
        sub: Who has it; "" where it does not say.
        expires_ms: It is worth nothing from then on.
    """

    pages: tuple[str, ...]
    sub: str
    expires_ms: int

    def allows(self, page: str) -> bool:
        """Whether it is for a page."""
        return any(page == name or (name.endswith("*") and page.startswith(name[:-1])) for name in self.pages)


class TokenVerifier:
    """Checks tokens against the secrets of the hub, whose file is read at each use, so that secrets rotate while it runs."""

    def __init__(self, server: LiveServer, clock: Clock) -> None:
        """Reads the secrets.

        Raises:
            ConfigurationError: The file cannot be read, or holds a secret that is too short.
        """
        self._server = server
        self._clock = clock
        self._secrets = server.secrets

    def accepted(self, text: str | None) -> PageToken:
        """What a token allows now.

        Raises:
            TokenError: There is none, or it is not accepted.
        """
        if not text:
            raise TokenError(f"a token is needed, in the cookie {COOKIE}")
        token = _token_of(self._claims(text))
        now_ms = self._clock.now_ms()
        if token.expires_ms <= now_ms:
            raise TokenError("the token has expired")
        if token.expires_ms > now_ms + LONGEST_MS + SKEW_MS:
            raise TokenError("the token expires in more than 24 h: exp must be nearer")
        return token

    def _claims(self, text: str) -> dict[str, Any]:
        try:
            self._secrets = self._server.secrets
        except ConfigurationError as error:
            # Somebody is replacing the file: until it is whole what was read last is right.
            logger.warning("the secrets cannot be read, those read before stay error=%s", error)
        for secret in self._secrets:
            try:
                # Times are compared with the clock of the hub, not by the library: one clock, and tests can move it.
                unchecked = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "require": ["exp", "pages"]}
                found: dict[str, Any] = jwt.decode(text, secret, algorithms=[ALGORITHM], options=unchecked)  # type: ignore[arg-type]  # the options are a TypedDict
            except jwt.InvalidSignatureError:
                continue
            except jwt.MissingRequiredClaimError as error:
                raise TokenError(f"the token has no {error.claim}") from error
            except jwt.InvalidTokenError as error:
                raise TokenError("the token cannot be read") from error
            return found
        raise TokenError("the token is not signed with a secret that is accepted")


def _token_of(claims: dict[str, Any]) -> PageToken:
    pages, sub, expires = claims["pages"], claims.get("sub", ""), claims["exp"]
    if not isinstance(pages, list) or not all(_bytes_of(page) is not None for page in pages):
        raise TokenError("pages of the token must be a list of names, in Unicode")
    if (written := _bytes_of(sub)) is None or len(written) > MOST_SUB_BYTES:
        raise TokenError(f"sub of the token must be a string of at most {MOST_SUB_BYTES} bytes, in Unicode")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 < expires < 2**40:
        raise TokenError("exp of the token must be a time in seconds")
    return PageToken(tuple(pages), sub, int(expires * 1000))


def _bytes_of(claim: Any) -> bytes | None:
    """A text as it is written; None: it is none, or has half of a surrogate pair, which JSON can hold and nothing else can."""
    try:
        return claim.encode() if isinstance(claim, str) else None
    except UnicodeEncodeError:
        return None


def signed(secret: str, pages: Sequence[str], sub: str, expires_ms: int) -> str:
    """A token, as an application makes it.

    Args:
        secret: The one that signs.
        pages: Names of pages; ``*`` at the end of one stands for anything.
        sub: Who has it; "": nobody says.
        expires_ms: When it expires (wall clock).
    """
    claims: dict[str, Any] = {"pages": list(pages), "exp": expires_ms // 1000}
    return jwt.encode(claims | ({"sub": sub} if sub else {}), secret, ALGORITHM)
