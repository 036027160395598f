"""Until when everything acknowledged is applied, while transactions come, stay and go."""

from __future__ import annotations

from streams_app.delivery.clocks import AcknowledgedUntil, ReaderView


def at(known: AcknowledgedUntil, fence: int, high: int | None, now_ms: int) -> int:
    return known.at(fence, ReaderView(fence + 1, now_ms, high), now_ms)


def test_where_nothing_is_hidden_the_last_fetch_counts() -> None:
    known = AcknowledgedUntil()

    assert [5, 7, 9] == [at(known, 3, 4, 5), at(known, 3, None, 7), at(known, 3, 2, 9)]


def test_while_a_transaction_is_open_what_was_acknowledged_is_known_until_it_began() -> None:
    known = AcknowledgedUntil()
    before = at(known, 9, 10, 1_000)
    during = [at(known, 9, 15 + second, 2_000 + 1_000 * second) for second in range(30)]
    after = at(known, 49, 50, 40_000)

    assert (1_000, {1_000}, 40_000) == (before, set(during), after)


def test_transactions_that_come_and_go_hold_up_by_their_own_length() -> None:
    known = AcknowledgedUntil()
    lags = [second - at(known, 10 * (second // 2), 10 * (second // 2) + 7, second) for second in range(1, 100)]

    assert max(lags[4:]) <= 4


def test_of_what_was_hidden_before_anybody_looked_nothing_is_known() -> None:
    known = AcknowledgedUntil()

    assert [0, 0, 5] == [at(known, 3, 9, 5), at(known, 7, 12, 6), at(known, 8, 12, 7)]
