"""The overview from what workers answer: the sentence, the problems, the picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streams_app.console.pages.model import Figure
from streams_app.console.pages.overview import Branch, Overview, overview_of, summary_of
from streams_app.console.reading.console_reader import ServerState
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Key, Samples
from streams_app.operations.worker_pages import Readiness
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings

NOW = 1_700_000_000_000
FOLD = {"source": "orders", "group_key": "id", "changed": "what", "quiet_period": "1m"}
STORE = {"name": "dash", "url": "sqlite:///x", "folds": ["a"], "source": "sql", "source_url": "sqlite:///y", "sql": "s"}
SETTINGS = Settings.model_validate(
    {
        "app_id": "shop",
        "folds": [{"name": name, **FOLD} for name in ("a", "b")],
        "read_stores": [STORE],
        "journals": [{"name": "kept", "source": "clicks", "key": "id"}],
    }
)
Values = dict[tuple[str, str, str], float]
HEALTHY: Values = {
    ("lag_events", "fold", "a"): 0, ("lag_events", "fold", "b"): 0, ("open_groups", "fold", "a"): 7,
    ("open_groups", "fold", "b"): 5, ("read_store_lag_records", "store", "dash"): 2,
    ("journal_lag_records", "journal", "kept"): 0,
}  # fmt: skip


def worker(
    url: str = "http://w:8080", values: Values = HEALTHY, health: Readiness | None = None, fault: str = ""
) -> ServerState:  # fmt: skip
    samples = Samples({(name, ((label, about),)): value for (name, label, about), value in values.items()})
    return ServerState(url, Samples({}) if fault else samples, "", health or Readiness(is_ready=True), fault, NOW)


def page(workers: Sequence[ServerState], history: History | None = None, settings: Settings = SETTINGS) -> Overview:
    return overview_of(declarations_of(settings), workers, history or History(), NOW)


def names(branches: Sequence[Branch]) -> list[Any]:
    return [[one.node.name, *names(one.branches)] for one in branches]


def test_all_is_well_if_every_worker_is_ready() -> None:
    found = page([worker()])

    assert ("ok", "All is well.", []) == (found.state, found.sentence, found.problems)
    assert "1 worker, 2 folds; rates are not known yet." == found.summary
    assert 12 == next(one.value for one in found.numbers if one.key == "groups")


@pytest.mark.parametrize(
    ("events", "records", "text"),
    [
        (None, None, "rates are not known yet."),
        (0.0, 0.0, "no event arrives at present."),
        (1_495.0, None, "1,495 events a second are folded."),
        (1_495.0, 12.0, "1,495 events a second become 12 records a second."),
    ],
)
def test_summary_says_what_is_known_of_the_rates(events: float | None, records: float | None, text: str) -> None:
    numbers = [Figure(key, "", value, "events/s", "", []) for key, value in (("in", events), ("out", records), ("ratio", None))]

    assert f"1 worker, 2 folds; {text}" == summary_of([worker()], numbers, 2)


def test_reasons_come_worst_first_with_links_and_names_of_alerts() -> None:
    values = HEALTHY | {
        ("oldest_overdue_seconds", "fold", "b"): 99.0,
        ("read_store_oldest_unsynced_seconds", "store", "dash"): 99.0,
    }
    health = Readiness(is_ready=False, reasons=("Redis does not answer",), remarks=("an open transaction hides records",))
    found = page([worker(values=values, health=health)])

    assert ("trouble", "2 problems and 2 remarks.") == (found.state, found.sentence)
    assert [
        ("critical", "The worker at http://w:8080 is not ready: Redis does not answer", "WorkerNotReady", "/workers"),
        ("critical", "Records of b are overdue by more than a minute", "FoldOverdue", "/folds/b"),
        ("warning", "An open transaction hides records", "", "/workers"),
        (
            "warning",
            "The oldest record that the read store dash lacks is older than a minute",
            "ReadStoreBehind",
            "/read-stores/dash",
        ),
    ] == [(one.severity, one.text, one.alert, one.link) for one in found.problems]  # fmt: skip


def test_server_that_is_away_is_said_once_and_a_read_store_leads_to_its_page() -> None:
    values: Values = {("up", "component", name): 0.0 for name in ("redis", "kafka", "read_store.dash")}
    health = Readiness(is_ready=False, reasons=("Redis at redis://r has not answered since noon",))

    assert [
        ("The worker at http://w:8080 is not ready: Redis at redis://r has not answered since noon", "/workers"),
        ("Kafka does not answer the worker at http://w:8080", "/workers"),
        ("The read store dash does not answer the worker at http://w:8080, whose log has the reason", "/read-stores/dash"),
    ] == [(one.text, one.link) for one in page([worker(values=values, health=health)]).problems]


def test_reason_of_a_read_store_that_is_away_is_said_once_with_its_worker() -> None:
    why = "read store dash does not work since 2026-11-18 10:13:20Z: sqlite:///x: locked"
    health = Readiness(is_ready=True, remarks=(why, "journal kept does not work since noon: x", "consumer of group g: x"))
    values: Values = {("up", "component", "read_store.dash"): 0.0}
    both = [worker(values=values, health=health), worker("http://v:8080", values=values)]

    assert [
        ("critical", f"R{why[1:]} (the worker at http://w:8080)", "/read-stores/dash"),
        (
            "critical",
            "The read store dash does not answer the worker at http://v:8080, whose log has the reason",
            "/read-stores/dash",
        ),
        ("warning", "Journal kept does not work since noon: x", "/journals/kept"),
        ("warning", "Consumer of group g: x", "/workers"),
    ] == [(one.severity, one.text, one.link) for one in page(both).problems]


def test_summary_says_how_many_of_the_workers_answer() -> None:
    summaries = [page([worker("a"), worker("b", fault=fault)]).summary for fault in ("", "does not answer within 3 s")]

    assert ["2 workers, 2 folds", "1 of 2 workers answer, 2 folds"] == [text.partition(";")[0] for text in summaries]


def test_alert_about_dead_letters_leads_to_their_topic() -> None:
    history = History()
    labels = (("fold", "a"), ("reason", "no-group"))
    for at in range(2):
        history.add("w", NOW - (1 - at) * EVERY_MS, Samples({("dead_letters_total", labels): 3.0 * at}))
    one = ServerState("w", Samples({("dead_letters_total", labels): 3.0}), "", Readiness(is_ready=True), "", NOW)

    assert [("DeadLetters", "/topics/orders.dead", "Events of a became dead letters within 10 minutes: no-group")] == [
        (found.alert, found.link, found.text) for found in page([one], history).problems
    ]


def test_only_remarks_are_no_problems() -> None:
    found = page([worker(health=Readiness(is_ready=True, remarks=("x",)))])

    assert ("attention", "All runs, with 1 remark.") == (found.state, found.sentence)


def test_no_worker_that_answers_is_said_first() -> None:
    found = page([worker(fault="does not answer within 3 s")])

    assert ("trouble", "No worker answers.") == (found.state, found.sentence)
    assert ["No worker answers: nothing is folded", "The worker at http://w:8080 does not answer within 3 s"] == [
        one.text for one in found.problems
    ]
    assert [("trouble", "away", "it does not answer within 3 s")] == [(one.state, one.word, one.fault) for one in found.workers]
    assert {"unknown"} == {branch.node.state for root in found.picture for branch in root.branches}


def test_missing_address_of_workers_is_a_problem() -> None:
    assert ["No worker is named: http.port is 0, so console.workers must say where workers are"] == [
        one.text for one in page([]).problems
    ]


def test_picture_leads_from_topics_over_folds_to_what_reads_their_records() -> None:
    assert [["orders", ["a", ["orders.a", ["dash"]]], ["b", ["orders.b"]]], ["clicks", ["kept"]]] == names(page([worker()]).picture)


def test_rates_of_all_workers_are_on_the_edges() -> None:
    history = History()
    for at in range(2):
        for url in ("v", "w"):
            values: dict[Key, float] = {
                ("events_folded_total", (("fold", "a"),)): 100.0 * at,
                ("records_emitted_total", (("fold", "a"),)): 5.0 * at,
            }
            history.add(url, NOW - (1 - at) * EVERY_MS, Samples(values))
    (orders, _) = page([worker()], history).picture
    fold, _ = orders.branches

    assert (40, "events/s", 2, "records/s") == (fold.rate, fold.unit, fold.branches[0].rate, fold.branches[0].unit)


def test_states_of_boxes_have_words() -> None:
    values = HEALTHY | {("lag_events", "fold", "a"): 5_000.0, ("oldest_overdue_seconds", "fold", "b"): 61.0,
                        ("up", "component", "read_store.dash"): 0.0}  # fmt: skip
    (orders, clicks) = page([worker(values=values)]).picture
    a, b = orders.branches

    assert [("attention", "lagging"), ("trouble", "overdue by 1 min 1 s"), ("trouble", "away"), ("ok", "current")] == [
        (one.node.state, one.node.word) for one in (a, b, a.branches[0].branches[0], clicks.branches[0])
    ]


def test_lag_is_that_of_the_worker_that_sees_most() -> None:
    lags = [worker(f"http://{number}", HEALTHY | {("lag_events", "fold", "a"): float(number)}) for number in (3, 8)]

    assert 8 == next(one.value for one in page(lags).numbers if one.key == "lag")
