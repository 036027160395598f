"""Tokens of SASL/OAUTHBEARER (KIP-255) from a file, a command or a function, reused until most of their lifetime has passed.

aiokafka requests a token for each new connection. It does not re-authenticate a connection (KIP-368): a broker with
``connections.max.reauth.ms`` closes a connection whose token has expired, and the client reconnects with a new token.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from streams_app.clock import Clock, SystemClock
from streams_app.errors import ConfigurationError
from streams_app.importing import attribute_of
from streams_app.settings import KafkaSettings
from streams_app.text_files import read_text

COMMAND_SECONDS: Final = 30.0
"""Timeout of a token command."""

REUSED_SHARE: Final = 0.8
"""Fraction of its lifetime for which a token is used for new connections.

The Java client has the setting ``sasl.login.refresh.window.factor`` for this.
"""

MAX_TOKEN_CHARACTERS: Final = 65_536
MAX_TOKEN_FILE_BYTES: Final = 2 * MAX_TOKEN_CHARACTERS
MAX_ERROR_CHARACTERS: Final = 300
FILE_SETTING: Final = "kafka.sasl_oauth_token_file"
COMMAND_SETTING: Final = "kafka.sasl_oauth_token_command"
PROVIDER_SETTING: Final = "kafka.sasl_oauth_token_provider"


class TokenUnavailableError(KafkaError):
    """No token could be obtained; aiokafka treats this as a failed connection. If it is certain, a retry cannot help."""

    def __init__(self, text: str, *, is_certain: bool = False) -> None:
        super().__init__(text)
        self.is_certain = is_certain

    def __str__(self) -> str:
        return str(self.args[0])


class Token(NamedTuple):
    """A token as it is sent to the broker.

    Attributes:
        text: The token itself; a secret.
        expires_ms: Unix time of its expiry in milliseconds; None if unknown.
    """

    text: str
    expires_ms: int | None = None


class TokenCache:
    """Caches the token of one file, command or function for all connections of this process; safe to use from any thread."""

    def __init__(self, fetch: Callable[[], Token], clock: Clock | None = None) -> None:
        """Create an empty cache; ``fetch`` obtains a new token, may block, and raises :class:`TokenUnavailableError`."""
        self._fetch = fetch
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._token: Token | None = None
        self._reusable_until_ms = 0

    def get(self) -> Token:
        """Return the current token; obtain a new one if most of its lifetime has passed or its expiry is unknown."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._token is None or now_ms >= self._reusable_until_ms:
                self._token = self._fetch()
                lifetime_ms = (self._token.expires_ms or now_ms) - now_ms
                self._reusable_until_ms = now_ms + int(lifetime_ms * REUSED_SHARE)
            return self._token

    def forget(self) -> None:
        """Discard the current token because the broker has rejected it; the next :meth:`get` obtains a new one."""
        with self._lock:
            self._token = None


class TokenProvider(AbstractTokenProvider):
    """Provides aiokafka with tokens from the file, command or function that the ``[kafka]`` settings name."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._cache = _cache_of(kafka.sasl_oauth_token_file, kafka.sasl_oauth_token_command, kafka.sasl_oauth_token_provider)
        self._extensions = dict(kafka.sasl_oauth_extensions)

    async def token(self) -> str:
        found = await asyncio.get_running_loop().run_in_executor(None, self._cache.get)
        return found.text

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions (KIP-342), such as ``logicalCluster`` of Confluent Cloud."""
        return self._extensions

    def forget(self) -> None:
        self._cache.forget()


def rejected_text(kafka: KafkaSettings, error: BaseException) -> tuple[str, bool]:
    """Explain why the broker may have rejected the token.

    Returns:
        The explanation, which contains the setting to check and the claims of the token; and whether the settings are wrong. If
        the token has expired, the second value is False, because a retry may obtain a new token; otherwise it is True.
    """
    found = _cache_of(kafka.sasl_oauth_token_file, kafka.sasl_oauth_token_command, kafka.sasl_oauth_token_provider).get()
    token = _with_expiry(found.text, found.expires_ms)
    claims = _claims(token.text)
    parts = [f"{name} {claims[name]!r}" for name in ("iss", "aud", "sub") if name in claims] or ["it is not a JWT"]
    is_expired = token.expires_ms is not None and token.expires_ms <= SystemClock().now_ms()
    if token.expires_ms is not None:
        when = datetime.fromtimestamp(token.expires_ms / 1000, UTC).isoformat(timespec="seconds")
        parts.append(f"{'expired' if is_expired else 'expires'} at {when}")
    return f"the broker rejects the token ({', '.join(parts)}): {setting_text(kafka)}: {error}", not is_expired


def setting_text(kafka: KafkaSettings) -> str:
    """Return the name and value of the setting that provides tokens. The value of a command is omitted: it may contain secrets."""
    if kafka.sasl_oauth_token_file:
        return f"{FILE_SETTING} = {kafka.sasl_oauth_token_file}"
    if kafka.sasl_oauth_token_provider:
        return f"{PROVIDER_SETTING} = {kafka.sasl_oauth_token_provider}"
    return COMMAND_SETTING


@lru_cache(maxsize=16)
def _cache_of(file: Path | None, command: str | None, provider: str | None) -> TokenCache:
    if file is not None:
        return TokenCache(lambda: _read(file))
    if command is not None:
        words = shlex.split(command)
        return TokenCache(lambda: _run(words))
    module, _, name = (provider or "").partition(":")
    function = attribute_of(PROVIDER_SETTING, module, name)
    if not callable(function):
        raise ConfigurationError([f"{PROVIDER_SETTING}: {provider} is not a function"])
    return TokenCache(lambda: _call(function))


def _read(file: Path) -> Token:
    try:
        text = read_text(file, MAX_TOKEN_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenUnavailableError(f"{FILE_SETTING}: cannot read {file}: {error}") from error
    return Token(_checked(text, f"{FILE_SETTING}: {file}"))  # no expiry, because the file may be replaced at any time


def _run(words: list[str]) -> Token:
    try:
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise TokenUnavailableError(f"{COMMAND_SETTING}: no token within {COMMAND_SECONDS:g} s") from error
    except OSError as error:
        raise TokenUnavailableError(f"{COMMAND_SETTING}: cannot run {words[0]}: {error.strerror}", is_certain=True) from error
    if ran.returncode:
        output = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:MAX_ERROR_CHARACTERS]
        raise TokenUnavailableError(f"{COMMAND_SETTING}: {words[0]} ended with {ran.returncode}{output and f': {output}'}")
    return _parsed(ran.stdout.decode("utf-8", "replace"))


def _parsed(text: str) -> Token:
    """Parse the output of a command: the token alone, or the answer of an OAuth server (RFC 6749, section 5.1)."""
    label = f"{COMMAND_SETTING}: what it prints"
    if not text.lstrip().startswith("{"):
        return _with_expiry(_checked(text, label), None)
    try:
        answer = orjson.loads(text)
        token, seconds = answer["access_token"], answer.get("expires_in")
    except (orjson.JSONDecodeError, KeyError) as error:
        raise TokenUnavailableError(f"{label} is JSON without access_token", is_certain=True) from error
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    expires_ms = SystemClock().now_ms() + int(seconds * 1000) if is_number else None
    return _with_expiry(_checked(token, label), expires_ms)


def _call(function: Callable[[], Any]) -> Token:
    try:
        answer = function()
    except Exception as error:  # the user's function may raise any error
        raise TokenUnavailableError(f"{PROVIDER_SETTING}: raised {type(error).__name__}: {error}") from error
    text, expires_ms = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)  # noqa: PLR2004 - a pair
    if expires_ms is not None and (isinstance(expires_ms, bool) or not isinstance(expires_ms, int | float)):
        raise TokenUnavailableError(f"{PROVIDER_SETTING}: the expiry is Unix milliseconds, not {expires_ms!r}", is_certain=True)
    return _with_expiry(_checked(text, PROVIDER_SETTING), None if expires_ms is None else int(expires_ms))


def _checked(text: object, label: str) -> str:
    """Return a token without surrounding white space, if a header can contain it (RFC 6750)."""
    if not isinstance(text, str):
        raise TokenUnavailableError(
            f"{label} must be text, not {type(text).__name__}; an async function is not called", is_certain=True
        )
    token = text.strip()
    if not token:
        raise TokenUnavailableError(f"{label} is empty")
    if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenUnavailableError(
            f"{label} is not a token, which is one word of at most {MAX_TOKEN_CHARACTERS:,} ASCII characters"
        )
    return token


def _with_expiry(token: str, expires_ms: int | None) -> Token:
    """Return a token with the given expiry; if that is None, with the expiry in the claims of the token, if they contain one."""
    seconds = None if expires_ms is not None else _claims(token).get("exp")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return Token(token, int(seconds * 1000) if is_number and seconds else expires_ms)


def _claims(token: str) -> dict[str, Any]:
    """Return the claims of a token, which are not verified, for messages and its expiry; empty if the token is not a JWT."""
    import jwt  # it imports `cryptography`, which takes 9 MB and a twentieth of a worker's start

    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return {}
    return claims
