"""The time up to which all acknowledged events are applied, with short and long open transactions."""

from __future__ import annotations

from streams_app.delivery.clocks import AcknowledgedUntil, ReaderView


def at(acknowledged: AcknowledgedUntil, fence: int, high: int | None, now_ms: int) -> int:
    return acknowledged.at(fence, ReaderView(fence + 1, now_ms, high), now_ms)


def test_last_fetch_counts_if_no_transaction_hides_records() -> None:
    acknowledged = AcknowledgedUntil()

    assert [5, 7, 9] == [at(acknowledged, 3, 4, 5), at(acknowledged, 3, None, 7), at(acknowledged, 3, 2, 9)]


def test_acknowledged_time_stops_at_the_start_of_an_open_transaction() -> None:
    acknowledged = AcknowledgedUntil()
    before = at(acknowledged, 9, 10, 1_000)
    during = [at(acknowledged, 9, 15 + second, 2_000 + 1_000 * second) for second in range(30)]
    after = at(acknowledged, 49, 50, 40_000)

    assert (1_000, {1_000}, 40_000) == (before, set(during), after)


def test_short_transactions_delay_acknowledged_time_by_their_own_length() -> None:
    acknowledged = AcknowledgedUntil()
    lags = [second - at(acknowledged, 10 * (second // 2), 10 * (second // 2) + 7, second) for second in range(1, 100)]

    assert max(lags[4:]) <= 4


def test_acknowledged_time_is_unknown_until_records_hidden_at_the_first_fetch_are_applied() -> None:
    acknowledged = AcknowledgedUntil()

    assert [0, 0, 5] == [at(acknowledged, 3, 9, 5), at(acknowledged, 7, 12, 6), at(acknowledged, 8, 12, 7)]
