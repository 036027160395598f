"""What is shown of each worker: its outages with their begin, its work, and why it claimed partitions again."""

from __future__ import annotations

from streams_app.console.pages.workers import html, page_of, part_of
from streams_app.console.reading.console_reader import ServerState
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Key, Samples
from streams_app.operations.worker_pages import Readiness

NOW = 1_700_000_000_000 // EVERY_MS * EVERY_MS
URL = "http://worker-1:8080"


def cause(name: str) -> Key:
    return ("not_ready", (("cause", name),))


def worker_of(values: dict[Key, float], reasons: tuple[str, ...] = (), fault: str = "", url: str = URL) -> ServerState:
    return ServerState(url, Samples(values), "", Readiness(not reasons, reasons), fault, NOW - 60_000)


def test_outage_has_its_cause_and_begin_for_this_worker_only() -> None:
    history = History()
    for back, value in ((3, 1.0), (2, 0.0), (1, 1.0), (0, 1.0)):
        history.add(URL, NOW - back * EVERY_MS, Samples({cause("redis"): value, cause("kafka"): 0.0}))
        history.add("http://worker-2:8080", NOW - back * EVERY_MS, Samples({cause("redis"): 1.0}))
    part = part_of(worker_of({cause("redis"): 1.0, cause("kafka"): 0.0}, ("Redis is away",)), history, NOW, has_charts=False)

    assert [("not ready", "redis", NOW - EVERY_MS, False)] == [
        (one.kind, one.cause, one.since_ms, one.is_older) for one in part.outages
    ]
    assert ["Redis is away"] == part.says


def test_outage_that_all_samples_have_may_be_older() -> None:
    history = History()
    for back in (1, 0):
        history.add(URL, NOW - back * EVERY_MS, Samples({cause("redis"): 1.0}))
    (outage,) = part_of(worker_of({cause("redis"): 1.0}, ("away",)), history, NOW, has_charts=False).outages

    assert (NOW - EVERY_MS, True) == (outage.since_ms, outage.is_older)


def test_outage_without_a_sample_has_no_begin() -> None:
    down: dict[Key, float] = {("up", (("component", "kafka"),)): 0.0, ("up", (("component", "redis"),)): 1.0}
    (outage,) = part_of(worker_of(down), History(), NOW, has_charts=False).outages

    assert ("away", "kafka", None) == (outage.kind, outage.cause, outage.since_ms)


def test_reason_of_a_repeated_claim_is_in_words() -> None:
    found: dict[Key, float] = {
        ("resyncs_total", (("cause", "token"), ("fold", "likes"))): 2.0,
        ("resyncs_total", (("cause", "newer"), ("fold", "likes"))): 3.0,
        ("resyncs_total", (("cause", "fence"), ("fold", "likes"))): 0.0,
    }
    part = part_of(worker_of(found), History(), NOW, has_charts=False)

    assert [("newer", 3, ""), ("token", 2, "another worker has claimed the partition")] == [
        (one.cause, one.times, one.what) for one in part.resyncs
    ]


def test_worker_that_attacks_is_shown_as_text() -> None:
    attack = "<script>alert(1)</script>\0\u202e"
    values: dict[Key, float] = {
        cause(attack): 1.0, ("open_groups", (("fold", attack),)): 1.0, ("build_info", (("version", attack),)): 1.0,
        ("resyncs_total", (("cause", attack), ("fold", attack))): 1.0,
    }  # fmt: skip
    history = History()
    history.add(URL, NOW, Samples(values))
    text = html(page_of([worker_of(values, (attack,)), worker_of({}, fault="is away", url="http://other")], history, NOW, [], []))

    assert not any(raw in text for raw in ("<script>", "\0", "\u202e"))
    assert "is away" in text and "2 workers" in text


def test_workers_beyond_the_first_have_no_charts() -> None:
    page = page_of([worker_of({}, url=f"http://w{number}") for number in range(64)], History(), NOW, [], [])

    assert [3] * 12 + [0] * 52 == [len(part.charts) for part in page.workers]


def test_partitions_of_each_group_have_the_last_rebalance_and_why() -> None:
    def of(name: str, change: str) -> Key:
        return name, (("change", change), ("consumer_group", "shop"))

    values: dict[Key, float] = {
        ("assigned_partitions", (("consumer_group", "shop"), ("topic", "a"))): 3.0,
        ("assigned_partitions", (("consumer_group", "shop"), ("topic", "b"))): 0.0,
        ("assigned_partitions", (("consumer_group", "shop.live.v"), ("topic", "a"))): 1.0,
        of("rebalances_total", "joined"): 1.0, of("rebalances_total", "lost"): 2.0, of("rebalances_total", "same"): 0.0,
        of("last_rebalance_timestamp_seconds", "joined"): 1_000.0, of("last_rebalance_timestamp_seconds", "lost"): 2_000.5,
    }  # fmt: skip
    part = part_of(worker_of(values), History(), NOW, has_charts=False)
    text = html(page_of([worker_of(values)], History(), NOW, [], []))

    assert [("shop", 3, {"a": 3, "b": 0}, 2_000_500, "lost", 2), ("shop.live.v", 1, {"a": 1}, None, "", 0)] == [
        (one.group, one.partitions, one.topics, one.last_ms, one.change, one.times) for one in part.assigned
    ]
    assert "another member joined" in text
