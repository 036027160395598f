"""Sessions of the console: the token, the cookie, and how often a wrong token may be tried; tokens of its forms."""

from __future__ import annotations

import pytest

from streams_app.console.access import FORM_MS, MOST_WRONG, SESSION_MS, WRONG_MS, WRONG_OF_ADDRESS, Forms, Sessions
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


def test_form_is_valid_for_its_browser_and_session_until_it_expires() -> None:
    clock = ManualClock()
    forms = Forms(clock)
    browser, other = forms.new_browser(), forms.new_browser()
    token = forms.token(browser, "session")
    same = [forms.fault(token, browser, "session"), forms.fault(token, other, "session"), forms.fault(token, browser, "")]
    clock.advance_ms(FORM_MS)
    later = forms.fault(token, browser, "session")
    clock.advance_ms(FORM_MS)

    assert ["", "foreign", "foreign"] == same
    assert ("", "expired") == (later, forms.fault(token, browser, "session"))
    assert "foreign" == Forms(clock).fault(token, browser, "session")


@pytest.mark.parametrize("token", ["", ".", "x", "x.y", "9999999999999999.", "9999999999999999.00", "\udcff.\udcff", "-1.\0"])
def test_forged_token_of_a_form_is_not_valid(token: str) -> None:
    forms = Forms(ManualClock())

    assert forms.fault(token, forms.new_browser(), "") in ("missing", "foreign")
    assert "missing" == forms.fault(forms.token("", ""), "", "")


def test_token_tried_a_thousand_times_is_compared_three_hundred_times_and_a_minute_later_may_be_tried() -> None:
    clock = ManualClock()
    sessions = Sessions("secret", clock)
    compared = 0
    for number in range(1_000):
        if sessions.may_attempt(f"10.0.0.{number % 40}"):
            compared += 1
            sessions.failed(f"10.0.0.{number % 40}")

    assert (MOST_WRONG, MOST_WRONG) == (compared, len(sessions._wrong))
    clock.advance_ms(WRONG_MS)
    assert (True, 0) == (sessions.may_attempt("10.0.0.1"), len(sessions._wrong))
