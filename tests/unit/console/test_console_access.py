"""Sessions of the console: the token, the cookie, and how often a wrong token may be tried."""

from __future__ import annotations

import pytest

from streams_app.console.access import MOST_WRONG, SESSION_MS, WRONG_MS, WRONG_OF_ADDRESS, Sessions
from tests.helpers.manual_clock import ManualClock


def test_only_the_token_is_right() -> None:
    sessions = Sessions("secret", ManualClock())

    assert sessions.is_right("secret")
    assert not any(map(sessions.is_right, ["", "secre", "secrets", "Secret", "\udcff", "secret\0", "é"]))


def test_cookie_is_valid_until_its_end() -> None:
    clock = ManualClock()
    sessions = Sessions("secret", clock)
    cookie = sessions.cookie()
    clock.advance_ms(SESSION_MS - 1)
    before = sessions.is_valid(cookie)
    clock.advance_ms(1)

    assert (True, False) == (before, sessions.is_valid(cookie))


def test_cookie_of_another_token_is_not_valid() -> None:
    clock = ManualClock()

    assert not Sessions("new", clock).is_valid(Sessions("old", clock).cookie())


@pytest.mark.parametrize("cookie", ["", ".", "x", "9999999999999", "9999999999999.", "9999999999999.00", "\udcff.\udcff", "-1.x"])
def test_forged_cookie_is_not_valid(cookie: str) -> None:
    assert not Sessions("secret", ManualClock()).is_valid(cookie)


def test_cookie_whose_end_was_changed_is_not_valid() -> None:
    sessions = Sessions("secret", ManualClock())
    end, _, signature = sessions.cookie().partition(".")

    assert not sessions.is_valid(f"{int(end) + 1}.{signature}")


def test_address_waits_after_ten_wrong_tokens_and_others_do_not() -> None:
    clock = ManualClock()
    sessions = Sessions("secret", clock)
    for _ in range(WRONG_OF_ADDRESS):
        assert sessions.may_attempt("a")
        sessions.failed("a")
    others = sessions.may_attempt("b")
    blocked = sessions.may_attempt("a")
    clock.advance_ms(WRONG_MS)

    assert (True, False, True) == (others, blocked, sessions.may_attempt("a"))


def test_all_addresses_together_are_limited() -> None:
    sessions = Sessions("secret", ManualClock())
    for number in range(MOST_WRONG):
        sessions.failed(str(number))

    assert not sessions.may_attempt("another")
