"""Tokens that grant a browser access to pages: JSON Web Tokens (HS256) in a cookie, signed by the application."""

from __future__ import annotations

import logging
import math
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
"""Maximum tolerated difference between the clocks of the application and the hub, in ms."""

MAX_SUB_BYTES: Final = 256

OPTIONS: Final = {
    "require": ["exp", "pages"],
    **dict.fromkeys(("verify_exp", "verify_iat", "verify_nbf", "verify_aud", "verify_iss", "verify_sub", "verify_jti"), False),
}
"""Options of PyJWT: it verifies the signature. The claims are verified here, with the clock of the hub, and errors name them."""


class TokenError(Exception):
    """The token of a browser was rejected; the message contains the reason but no part of the token."""


@dataclass(frozen=True, slots=True)
class PageToken:
    """Verified content of a token.

    Attributes:
        pages: Names of pages. A name that ends with ``*`` stands for all names with this prefix.
        sub: Name of the user; "" if the token has none.
        expires_ms: Time from which the token is no longer valid.
        begins_ms: Time from which the token is valid; 0 if the token names none.
    """

    pages: tuple[str, ...]
    sub: str
    expires_ms: int
    begins_ms: int = 0

    def allows(self, page: str) -> bool:
        return any(page == name or (name.endswith("*") and page.startswith(name[:-1])) for name in self.pages)


class TokenVerifier:
    """Verifies tokens with the secrets of the hub. Their file is read for each token, so that secrets can be rotated at runtime."""

    def __init__(self, server: LiveServer, clock: Clock) -> None:
        """Read the secrets; ConfigurationError if their file cannot be read, or contains one that is too short."""
        self._server = server
        self._clock = clock
        self._secrets = server.secrets

    def accepted(self, text: str | None) -> PageToken:
        """Verify signature, content and times of a token, and return its content.

        If the file of the secrets cannot be read, the secrets that were read before are used.

        Raises:
            TokenError: The token is missing or rejected.
        """
        if not text:
            raise TokenError(f"a token is needed, in the cookie {COOKIE}")
        token = _token_of(self._claims(text))
        now_ms = self._clock.now_ms()
        if token.expires_ms <= now_ms:
            raise TokenError("the token has expired")
        if token.expires_ms > now_ms + LONGEST_MS + SKEW_MS:
            raise TokenError("the token expires in more than 24 h: exp must be nearer")
        if token.begins_ms > now_ms:
            raise TokenError("the token is not valid yet: its nbf is in the future")
        return token

    def _claims(self, text: str) -> dict[str, Any]:
        try:
            self._secrets = self._server.secrets
        except ConfigurationError as error:
            # The file may be in the middle of a replacement: until it is valid, the previous secrets apply.
            logger.warning("the secrets cannot be read, the previous ones still apply error=%s", error)
        for secret in self._secrets:
            try:
                found: dict[str, Any] = jwt.decode(text, secret, algorithms=[ALGORITHM], options=OPTIONS)  # type: ignore[arg-type]  # the options are a TypedDict
            except jwt.InvalidSignatureError:
                continue
            except jwt.MissingRequiredClaimError as error:
                raise TokenError(f"the token has no {error.claim}") from error
            except jwt.InvalidAlgorithmError as error:
                raise TokenError(f"the token must be signed with {ALGORITHM}") from error
            except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
                raise TokenError("the token cannot be read") from error
            return found
        raise TokenError("the token is not signed with a secret that is accepted")


def _token_of(claims: dict[str, Any]) -> PageToken:
    pages, sub, expires = claims["pages"], claims.get("sub", ""), claims["exp"]
    if not isinstance(pages, list) or not all(_bytes_of(page) is not None for page in pages):
        raise TokenError("pages of the token must be a list of names, in Unicode")
    if (written := _bytes_of(sub)) is None or len(written) > MAX_SUB_BYTES:
        raise TokenError(f"sub of the token must be a string of at most {MAX_SUB_BYTES} bytes, in Unicode")
    if claims.get("aud") is not None:
        raise TokenError("the token has the claim aud, so it is for another service: a token for live views has none")
    return PageToken(tuple(pages), sub, _time_ms("exp", expires), _time_ms("nbf", claims.get("nbf", 0)))


def _time_ms(name: str, claim: Any) -> int:
    """Return a claim that is a time in seconds, in ms; a fraction of a ms counts as a whole one."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim < 2**40:
        raise TokenError(f"{name} of the token must be a time in seconds")
    return math.ceil(claim * 1000)


def _bytes_of(claim: Any) -> bytes | None:
    """Return a text as UTF-8; None if it is not a string, or contains a lone surrogate, which JSON permits."""
    try:
        return claim.encode() if isinstance(claim, str) else None
    except UnicodeEncodeError:
        return None


def signed(secret: str, pages: Sequence[str], sub: str, expires_ms: int) -> str:
    """Return a signed token (HS256), as an application creates it for its users; its fields are those of :class:`PageToken`."""
    claims: dict[str, Any] = {"pages": list(pages), "exp": expires_ms // 1000}
    return jwt.encode(claims | ({"sub": sub} if sub else {}), secret, ALGORITHM)
