"""What is reported of transactions that stay open, and of short ones."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.open_transactions import FRESH_MS, REPORTED_MS, OpenTransactions
from streams_app.settings import Settings

T0, T1 = TP("t", 0), TP("t", 1)
SETTINGS = Settings.model_validate({
    "app_id": "a",
    "folds": [{"name": "f", "source": "t", "output": "o", "group_key": "id", "changed": "m", "quiet_period": "1s"}],
})  # fmt: skip


class Observed:
    """A worker that reads a topic, and its reports."""

    def __init__(self) -> None:
        self.metrics, self.status = Metrics(SETTINGS), Status()
        self.now_ms = 1_000_000
        self._transactions = OpenTransactions(self.metrics, self.status)

    def see(self, after_ms: int = 0, *, silent_ms: int = 0, **partitions: tuple[int, int] | None) -> None:
        """Observe ``t0`` and ``t1``: last stable offset and high watermark of the assigned partitions."""
        self.now_ms += after_ms
        found = {"t0": T0, "t1": T1}
        views = {
            found[name]: ReaderView(*((None, None, None) if ends is None else (ends[0], self.now_ms - silent_ms, ends[1])))
            for name, ends in partitions.items()
        }
        self._transactions.observe("folds", views, self.now_ms)

    def gauges(self) -> tuple[float | None, ...]:
        """Return the gauges of records and of seconds."""
        name, labels = "streams_app_open_transaction", {"reader": "folds", "topic": "t"}
        given = self.metrics.registry.get_sample_value
        return given(f"{name}_records", labels), given(f"{name}_seconds", labels)


@pytest.fixture
def seen() -> Observed:
    return Observed()


def test_log_without_transactions_hides_nothing(seen: Observed) -> None:
    seen.see(t0=(5, 5))
    seen.see(REPORTED_MS, t0=(5, 5), t1=None)

    assert ((0, 0), []) == (seen.gauges(), seen.status.remarks())


def test_hidden_records_are_counted_at_once_and_reported_once_they_persist(
    seen: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    seen.see(t0=(5, 8), t1=(1, 2))
    seen.see(REPORTED_MS - 1, t0=(5, 9), t1=(1, 2))
    before = [*seen.gauges(), len(seen.status.remarks())]
    seen.see(1, t0=(5, 9), t1=(2, 2))
    seen.see(1, t0=(5, 9), t1=(2, 2))

    remark = " ".join(seen.status.remarks())
    assert [5, (REPORTED_MS - 1) / 1_000, 0] == before
    assert [4, (REPORTED_MS + 1) / 1_000] == list(seen.gauges())
    assert remark.startswith("folds: an open transaction hides 4 offsets of t-0 from offset 5 on, for 10.0 s;")
    assert 1 == caplog.text.count("an open transaction hides the records after it reader=folds source=t-0 offset=5 records=4")


def test_short_transactions_are_not_reported(seen: Observed, caplog: pytest.LogCaptureFixture) -> None:
    for stable in range(50):
        seen.see(REPORTED_MS - 1, t0=(stable, stable + 3))

    assert ((3, 0), []) == (seen.gauges(), seen.status.remarks())
    assert "transaction" not in caplog.text


@pytest.mark.parametrize("ends", [(9, 9), (7, 9)], ids=["all are over", "another one is open behind it"])
def test_end_of_a_reported_transaction_is_reported(seen: Observed, caplog: pytest.LogCaptureFixture, ends: tuple[int, int]) -> None:
    seen.see(t0=(5, 8))
    seen.see(REPORTED_MS, t0=(5, 8))
    seen.see(1, t0=ends)

    assert ((ends[1] - ends[0], 0), []) == (seen.gauges(), seen.status.remarks())
    assert "the transaction has ended reader=folds source=t-0 offset=5" in caplog.text


@pytest.mark.parametrize(
    ("partitions", "silent_ms"),
    [({}, 0), ({"t0": None}, 0), ({"t0": (5, 8)}, FRESH_MS + 1)],
    ids=["another member has it", "nothing was fetched", "the reader is cut off"],
)
def test_outdated_observation_is_cleared_silently(
    seen: Observed, caplog: pytest.LogCaptureFixture, partitions: dict[str, tuple[int, int] | None], silent_ms: int
) -> None:
    seen.see(t0=(5, 8))
    seen.see(REPORTED_MS, t0=(5, 8))
    seen.see(1, silent_ms=silent_ms, **partitions)

    assert ((0, 0), []) == (seen.gauges(), seen.status.remarks())
    assert "has ended" not in caplog.text
