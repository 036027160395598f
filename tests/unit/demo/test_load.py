"""The events of the demo: reproducible by seed, at the requested rate, shaped like those of a network."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import pytest

from streams_app.demo.load import HOT_ACCOUNTS, METRICS, Load, Update
from streams_app.demo.replay import EventReplay, time_of
from streams_app.errors import ConfigurationError


def values(updates: list[Update]) -> list[dict[str, Any]]:
    return [json.loads(update.value) for update in updates]


@pytest.mark.parametrize("cuts", [[8_000.0], [1.0] * 8, "random", "fine"], ids=str)
def test_load_is_independent_of_the_split_into_calls(cuts: Any) -> None:
    expected = Load(groups=50, rate=300).until(8_000)
    if cuts == "random":
        dice = random.Random(7)
        instants = sorted(dice.uniform(0, 8_000) for _ in range(80))
    elif cuts == "fine":
        instants = [float(at) for at in range(0, 8_000, 10)]
    else:
        instants = [1_000 * number * part for number, part in enumerate(cuts)]
    load = Load(groups=50, rate=300)
    found = [update for instant in [*instants, 8_000] for update in load.until(instant)]

    assert len(expected) > 1_000
    assert expected == found


def test_load_depends_on_the_seed() -> None:
    assert Load(groups=50, rate=300, seed=1).until(2_000) != Load(groups=50, rate=300, seed=2).until(2_000)


def test_repeated_instant_yields_no_more_events() -> None:
    load = Load(groups=50, rate=300)

    assert load.until(3_000)
    assert [] == load.until(3_000)
    assert [] == load.until(1_000)


def test_load_is_endless() -> None:
    load = Load(groups=2, rate=100)
    load.until(10_000)

    assert not load.is_exhausted


@pytest.mark.parametrize(("rate", "seconds"), [(200, 120), (1_500, 24)])
@pytest.mark.parametrize("seed", [1, 20210801])
def test_mean_rate_is_the_requested_one(rate: int, seconds: int, seed: int) -> None:
    assert len(Load(groups=500, rate=rate, seed=seed).until(1_000 * seconds)) / seconds == pytest.approx(rate, rel=0.15)


def test_events_are_in_order_and_never_in_the_future() -> None:
    load = Load(groups=100, rate=500)
    before = 0.0
    for now in range(0, 10_000, 250):
        updates = load.until(now)
        times = [before, *(update.at_ms for update in updates)]
        assert all(one <= next_one for one, next_one in pairwise(times))
        assert all(update.at_ms <= now for update in updates)
        before = times[-1]


def test_metric_of_a_post_grows_with_every_event() -> None:
    levels: dict[tuple[str, str, str], int] = {}
    for event in values(Load(groups=20, rate=500).until(10_000)):
        for name, level in event["metrics"].items():
            place = event["account_id"], event["post_id"], name
            assert level > levels.get(place, 0)
            levels[place] = level
    assert len(levels) > 100


def test_events_are_keyed_by_their_account_and_name_declared_metrics() -> None:
    updates = Load(groups=20, rate=500).until(5_000)
    for update, event in zip(updates, values(updates), strict=True):
        assert event["account_id"].encode() == update.key
        assert event["metrics"]
        assert event["metrics"].keys() <= set(METRICS)


@pytest.mark.parametrize("groups", [1, 2, 3, 10])
def test_accounts_do_not_exceed_the_requested_number(groups: int) -> None:
    accounts = {event["account_id"] for event in values(Load(groups=groups, rate=800).until(8_000))}

    assert {f"account_{number}" for number in range(1, groups + 1)} == accounts


def test_hot_accounts_have_more_than_a_tenth_and_the_tail_is_long() -> None:
    counts = Counter(event["account_id"] for event in values(Load(groups=500, rate=1_500).until(24_000)))
    hot = sum(counts[f"account_{number + 1}"] for number in range(HOT_ACCOUNTS))

    assert 0.1 < hot / counts.total() < 0.6
    assert len(counts) > 200


def test_load_alternates_between_bursts_and_silence() -> None:
    seconds = Counter(int(update.at_ms // 1_000) for update in Load(groups=500, rate=1_500).until(24_000))

    assert min(seconds.values()) < 0.6 * 1_500 < 1_500 < max(seconds.values())


# Replay


def replay(tmp_path: Path, *lines: str | bytes, group_key: str = "user", rate: float = 10, speed: float = 1.0) -> EventReplay:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return EventReplay(path, group_key=group_key, rate=rate, speed=speed)


FOREVER = float("inf")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"time": 1627776000}', '{"time": 1627776002.5}'),
        ('{"timestamp": 1627776000000}', '{"timestamp": 1627776002500}'),
        ('{"ts": "2021-08-01T00:00:00Z"}', '{"ts": "2021-08-01T00:00:02.500Z"}'),
        ('{"at": "2021-08-01T00:00:00"}', '{"at": "2021-08-01T00:00:02.5+00:00"}'),
        ('{"created_at": "2021-08-01T02:00:00+02:00"}', '{"created_at": 1627776002.5}'),
        ('{"before": null, "ts_ms": 1627776000000}', '{"before": null, "ts_ms": 1627776002500}'),
    ],
)
def test_lines_are_paced_by_their_time(tmp_path: Path, first: str, second: str) -> None:
    source = replay(tmp_path, first, second)

    assert [first.encode()] == [update.value for update in source.until(2_499)]
    assert not source.is_exhausted
    assert [second.encode()] == [update.value for update in source.until(2_500)]
    assert source.is_exhausted


def test_double_speed_halves_the_waits(tmp_path: Path) -> None:
    source = replay(tmp_path, '{"time": 10}', '{"time": 14}', speed=2.0)

    assert [0.0, 2_000.0] == [update.at_ms for update in source.until(FOREVER)]


def test_lines_without_a_time_are_paced_by_the_rate(tmp_path: Path) -> None:
    source = replay(tmp_path, *['{"user": 1}'] * 3, rate=10)

    assert [100.0, 200.0, 300.0] == [update.at_ms for update in source.until(FOREVER)]


def test_line_that_goes_back_in_time_follows_at_once(tmp_path: Path) -> None:
    source = replay(tmp_path, '{"time": 10}', '{"time": 13}', '{"time": 11}', '{"time": 14}')

    assert [0.0, 3_000.0, 3_000.0, 4_000.0] == [update.at_ms for update in source.until(FOREVER)]


def test_lines_that_are_not_json_objects_are_passed_unchanged(tmp_path: Path) -> None:
    bad = [b"not json", b"[1, 2]", b'"text"', b"{broken", b"\xff\xfe", b"null"]
    updates = replay(tmp_path, *bad).until(FOREVER)

    assert bad == [update.value for update in updates]
    assert [None] * len(bad) == [update.key for update in updates]


def test_empty_lines_are_no_events(tmp_path: Path) -> None:
    assert [b"1"] == [update.value for update in replay(tmp_path, "", "  ", "1", "").until(FOREVER)]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, cramjam.zstd.compress])
def test_demo_and_tune_read_the_same_lines_of_a_file(tmp_path: Path, compress: Callable[[bytes], Any]) -> None:
    path = tmp_path / "events"
    path.write_bytes(bytes(compress(b'\xef\xbb\xbf{"user": 1}\r\n\r\n{"user": 2}')))

    assert [b'{"user": 1}', b'{"user": 2}'] == [
        update.value for update in EventReplay(path, group_key="user", rate=1).until(FOREVER)
    ]


@pytest.mark.parametrize("compress", [gzip.compress, cramjam.zstd.compress])
def test_readable_part_of_a_broken_file_is_replayed_and_the_error_is_stored(
    tmp_path: Path, compress: Callable[[bytes], Any]
) -> None:
    path = tmp_path / "events"
    whole = bytes(compress(b"".join(b'{"user": %d}\n' % (number**5 % 1_000_003) for number in range(30_000))))
    path.write_bytes(whole[: len(whole) // 2])
    source = EventReplay(path, group_key="user", rate=1)
    events = len(source.until(FOREVER))

    assert 1_000 < events < 30_000
    assert source.fault is not None
    assert "cannot be read any further" in source.fault


@pytest.mark.parametrize(
    ("line", "expected"),
    [('{"ts_ms": 1627776000000}', "by ts_ms"), ('{"when": 1627776000000}', "10 events a second, as they have no time in time, ")],
)
def test_pace_says_whether_time_or_rate_paces_the_events(tmp_path: Path, line: str, expected: str) -> None:
    assert replay(tmp_path, line, rate=10).rate_text.startswith(expected)


def test_empty_file_is_exhausted_at_once(tmp_path: Path) -> None:
    assert replay(tmp_path).is_exhausted


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"user": "anna"}', b"anna"),
        ('{"user": 7}', b"7"),
        ('{"user": true}', b"true"),
        ('{"user": null}', None),
        ('{"user": {"id": 1}}', None),
        ('{"other": 1}', None),
    ],
)
def test_record_key_is_the_group_key(tmp_path: Path, line: str, expected: bytes | None) -> None:
    assert [expected] == [update.key for update in replay(tmp_path, line).until(FOREVER)]


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--replay.*nothing\.jsonl"):
        EventReplay(tmp_path / "nothing.jsonl", group_key="user", rate=1)


@pytest.mark.parametrize("event", [None, [], 7, {}, {"time": True}, {"time": "soon"}, {"time": None}, {"when": 1}])
def test_event_without_a_recognizable_time_has_none(event: Any) -> None:
    assert time_of(event) is None


def test_invalid_time_field_falls_back_to_the_next_one() -> None:
    assert time_of({"time": "soon", "ts": 5}) == 5_000
