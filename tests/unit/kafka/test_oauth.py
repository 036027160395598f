"""Tokens of SASL/OAUTHBEARER: how long one is reused, and which answers are not a token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jwt
import pytest
from aiokafka.conn import OAuthAuthenticator

from streams_app.errors import ConfigurationError
from streams_app.kafka.client import client_options
from streams_app.kafka.oauth import Token, TokenCache, TokenProvider, TokenUnavailableError
from streams_app.settings import KafkaSettings
from tests.helpers.manual_clock import ManualClock

START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def provider(**tokens: object) -> TokenProvider:
    settings = {f"sasl_oauth_token_{kind}": value for kind, value in tokens.items()}
    return TokenProvider(
        KafkaSettings.model_validate({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **settings})
    )


def function(monkeypatch: pytest.MonkeyPatch, answer: object) -> str:
    """Return the name of a provider that returns an answer, or raises it."""

    def current() -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    name = f"tokens_{id(answer)}"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(current=current))
    return f"{name}:current"


# ---- reuse


@pytest.mark.parametrize(("passed_ms", "fetches"), [(0, 1), (HOUR_MS * 8 // 10 - 1, 1), (HOUR_MS * 8 // 10, 2), (HOUR_MS * 2, 2)])
def test_token_is_reused_for_four_fifths_of_its_lifetime(passed_ms: int, fetches: int) -> None:
    clock, fetched = ManualClock(START_MS), []

    def fetch() -> Token:
        fetched.append(clock.now_ms())
        return Token(f"token{len(fetched)}", clock.now_ms() + HOUR_MS)

    cache = TokenCache(fetch, clock)
    cache.get()
    clock._now_ms += passed_ms

    assert f"token{fetches}" == cache.get().text
    assert fetches == len(fetched)


def test_token_without_expiry_is_obtained_for_each_connection() -> None:
    fetched = iter("ab")
    cache = TokenCache(lambda: Token(next(fetched)), ManualClock(START_MS))

    assert ["a", "b"] == [cache.get().text, cache.get().text]


def test_expired_token_is_not_reused() -> None:
    fetched = iter("ab")
    cache = TokenCache(lambda: Token(next(fetched), START_MS - HOUR_MS), ManualClock(START_MS))

    assert ["a", "b"] == [cache.get().text, cache.get().text]


def test_rejected_token_is_not_reused() -> None:
    fetched = iter("ab")
    cache = TokenCache(lambda: Token(next(fetched), START_MS + HOUR_MS), ManualClock(START_MS))
    cache.get()

    cache.forget()

    assert "b" == cache.get().text


def test_failed_token_request_is_retried() -> None:
    answers: Iterator[Exception | Token] = iter([TokenUnavailableError("away"), Token("a")])

    def fetch() -> Token:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = TokenCache(fetch, ManualClock(START_MS))

    with pytest.raises(TokenUnavailableError, match="away"):
        cache.get()
    assert "a" == cache.get().text


# ---- sources


async def test_token_file_without_end_is_rejected() -> None:
    with pytest.raises(TokenUnavailableError, match="cannot read /dev/zero: it has more than 131072 bytes"):
        await provider(file=Path("/dev/zero")).token()


async def test_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    one = provider(file=path)
    path.write_text("a\n", "utf-8")
    first = await one.token()
    path.write_text("b", "utf-8")

    assert ("a", "b") == (first, await one.token())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("abc", "abc"),
        (" abc\n", "abc"),
        (("abc", START_MS), "abc"),
        (("abc", None), "abc"),
    ],
)
async def test_function_returns_a_token_or_a_token_and_its_expiry(
    monkeypatch: pytest.MonkeyPatch, answer: object, expected: str
) -> None:
    assert expected == await provider(provider=function(monkeypatch, answer)).token()


@pytest.mark.parametrize(
    ("answer", "is_certain", "text"),
    [
        (None, True, "must be text, not NoneType; an async function is not called"),
        (b"abc", True, "must be text, not bytes"),
        (("abc", "soon"), True, "the expiry is Unix milliseconds, not 'soon'"),
        (("abc", True), True, "the expiry is Unix milliseconds, not True"),
        ("", False, "is empty"),
        ("a b", False, "is not a token"),
        ("a\x01b", False, "is not a token"),
        ("ä", False, "is not a token"),
        ("a" * 65_537, False, "is not a token"),
        (ValueError("no credentials"), False, "raised ValueError: no credentials"),
    ],
)
async def test_function_that_returns_no_token_is_named_with_its_fault(
    monkeypatch: pytest.MonkeyPatch, answer: object, is_certain: bool, text: str
) -> None:
    with pytest.raises(TokenUnavailableError) as raised:
        await provider(provider=function(monkeypatch, answer)).token()

    assert text in str(raised.value)
    assert is_certain == raised.value.is_certain


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("json:nothing", "has no 'nothing'"),
        ("json:__doc__", "is not a function"),
    ],
)
def test_provider_that_cannot_be_imported_is_a_settings_fault(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        provider(provider=name)


async def test_expiry_within_the_token_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    token = jwt.encode({"exp": 4_000_000_000}, "k" * 32, algorithm="HS256")
    one = provider(provider=function(monkeypatch, token))
    await one.token()

    assert 4_000_000_000_000 == one._cache.get().expires_ms


# ---- aiokafka


def test_client_options_have_the_provider_and_its_extensions_and_no_password(tmp_path: Path) -> None:
    options = client_options(
        KafkaSettings.model_validate(
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_file": tmp_path / "token",
                "sasl_oauth_extensions": {"logicalCluster": "lkc-1"},
            }
        )
    )

    assert {"logicalCluster": "lkc-1"} == options["sasl_oauth_token_provider"].extensions()
    assert set() == {"sasl_plain_username", "sasl_plain_password"} & set(options)


async def test_challenge_after_the_token_ends_the_exchange_and_discards_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    one = provider(provider=function(monkeypatch, ("abc", 4_000_000_000_000)))
    client_options(KafkaSettings())  # installs the patches
    authenticator = OAuthAuthenticator(sasl_oauth_token_provider=one)

    sent, _ = await authenticator.step(None)
    accepted = await authenticator.step(b"")
    rejected = await authenticator.step(b'{"status":"invalid_token"}')

    assert (b"n,,\x01auth=Bearer abc\x01\x01", None, (b"\x01", True)) == (sent, accepted, rejected)
    assert one._cache._token is None
