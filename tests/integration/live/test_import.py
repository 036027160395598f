"""``streams-app live import``: either all past events become records of the source, or none."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka.admin import NewTopic

from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import admin_of, read_topic
from tests.helpers.live.watched import COUNT, LIST, Watched
from tests.helpers.worker.site import Site

pytestmark = pytest.mark.timeout(200)

HOUR_MS = 3_600_000


@pytest.fixture
def watched(site: Site) -> Watched:
    return Watched(site)


def line(number: int, *, ago_ms: int = 60_000, **more: Any) -> dict[str, Any]:
    at_ms = int(time.time() * 1000) - ago_ms
    return {"key": "7", "time": at_ms, "value": {"project": 7, "id": number, "title": f"t{number}"}, **more}


def written(folder: Path, *lines: Any) -> str:
    path = folder / "before.jsonl"
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else orjson.dumps(one) for one in lines) + b"\n")
    return str(path)


async def test_imported_events_are_shown_with_their_times_and_read_by_all_named_views(watched: Watched, tmp_path: Path) -> None:
    config = watched.config(
        news=LIST | {"only": {"@type": "published"}, "remove": {"@type": "unpublished"}}, all=COUNT | {"expiry": "5h"}
    )
    await watched.topics()
    published: dict[str, Any] = {"headers": {"ce_type": "published"}}
    unpublished: dict[str, Any] = {"headers": {"ce_type": "unpublished"}}
    lines = [
        line(1, **published), line(2, **published), line(2, **unpublished), line(3, ago_ms=2 * HOUR_MS, **published), line(4),
    ]  # fmt: skip
    command = ("live", "import", "news", written(tmp_path, *lines), "--config", str(config))
    tried = run(*command)
    with watched.site.worker(config):
        await watched.shows(config, "all", 0)
        done = run(*command, "--yes")
        assert 0 == done.code, done.text
        shown = await watched.shows(config, "news", 1)
        await watched.shows(config, "all", 4)
        second = run(*command, "--yes")
        await watched.shows(config, "all", 4)

    assert [0, 0, 0] == [tried.code, done.code, second.code], tried.text + done.text
    assert "live view news: 2 shown, 1 removed, 1 older than its expiry, 1 not for it" in tried.out
    assert f"who else of this application reads {watched.source}: live view all" in tried.out
    assert "nothing was sent; --yes does it" in tried.out
    assert "audit live-import live=news" in done.err
    assert [("1", lines[0]["time"])] == [(item.item, item.time_ms) for item in shown.items]


BAD = {
    b"{": "line 2: no JSON",
    b"[1]": 'line 2: expected {"key", "time", "value"}',
    b'{"key": "7", "time": 1, "value": {}, "offset": 3}': "line 2: expected",
    b'{"key": 7, "time": 1, "value": {}}': "line 2: key is a string",
    b'{"key": "7", "time": "soon", "value": {}}': "line 2: time is neither",
    b'{"key": "7", "time": "2999-01-01", "value": {}}': "line 2: time is to come",
    b'{"key": "7", "time": 1600000000, "value": [1]}': "line 2: value is an object",
    b'{"key": "7", "time": 1600000000, "value": {"project": 7}}': "line 2: no-item",
    b'{"key": "7", "time": 1600000000, "value": {}, "headers": {"ce_type": 1}}': "line 2: headers is an object of strings",
}


async def test_invalid_line_is_named_and_nothing_is_sent(watched: Watched, tmp_path: Path) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    found = {}
    for bad in BAD:
        found[bad] = run("live", "import", "made", written(tmp_path, line(1), bad), "--yes", "--config", str(config))
    empty = run("live", "import", "made", written(tmp_path, b""), "--yes", "--config", str(config))
    await watched.put({"project": 7, "id": 9})
    records = await read_topic(watched.site.bootstrap, watched.source, until=lambda read: len(read) >= 1, timeout_seconds=60)

    assert {bad: 1 for bad in BAD} == {bad: ran.code for bad, ran in found.items()}
    assert [] == [bad for bad, text in BAD.items() if text not in found[bad].err or "nothing was sent" not in found[bad].err]
    assert (1, True) == (empty.code, "has no lines" in empty.err)
    assert [b'{"project":7,"id":9}'] == [record.value for record in records]


async def test_view_of_framed_values_is_rejected_because_the_lines_are_json(watched: Watched, tmp_path: Path) -> None:
    config = watched.config(made=COUNT | {"format": "avro"})
    config.write_text(config.read_text() + '[schema_registry]\nurl = "http://127.0.0.1:1"\n')
    await watched.topics()
    ran = run("live", "import", "made", written(tmp_path, line(1)), "--yes", "--config", str(config))

    assert 1 == ran.code
    assert "produce them by your serializer" in ran.err


async def test_presence_unknown_views_and_missing_topics_are_rejected(watched: Watched, tmp_path: Path) -> None:
    config = watched.config(made=COUNT)
    text = config.read_text() + '[live.people]\nkind = "presence"\nexpiry = "60s"\npublic = true\n'
    config.write_text(text)
    file = written(tmp_path, line(1))
    people = run("live", "import", "people", file, "--config", str(config))
    unknown = run("live", "import", "maid", file, "--config", str(config))
    missing = run("live", "import", "made", file, "--config", str(config))
    both = run("live", "import", "made", file, "--yes", "--dry-run", "--config", str(config))

    assert [1, 1, 1] == [people.code, unknown.code, missing.code]
    assert "counts open pages" in people.err
    assert "did you mean 'made'?" in unknown.err
    assert f"topic '{watched.source}'" in missing.err
    assert both.code != 0
    assert "not both" in both.err


@pytest.mark.apache
async def test_topic_with_log_append_time_is_rejected(watched: Watched, tmp_path: Path) -> None:
    config = watched.config(made=COUNT)
    async with admin_of(watched.site.bootstrap) as admin:
        await admin.create_topics([NewTopic(watched.source, 1, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})])
    ran = run("live", "import", "made", written(tmp_path, line(1)), "--yes", "--config", str(config))

    assert 1 == ran.code
    assert "message.timestamp.type=LogAppendTime" in ran.err


@pytest.mark.apache
@pytest.mark.parametrize("setting", ["message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"])
async def test_lines_older_than_the_topic_accepts_are_rejected_before_anything_is_sent(
    watched: Watched, tmp_path: Path, setting: str
) -> None:
    config = watched.config(made=COUNT)
    async with admin_of(watched.site.bootstrap) as admin:
        made = await admin.create_topics([NewTopic(watched.source, 1, 1, topic_configs={setting: str(HOUR_MS)})])
    if made.topic_errors[0][1]:
        pytest.skip(f"the broker does not know {setting}")
    lines = [line(1), line(2, ago_ms=2 * HOUR_MS), line(3, ago_ms=3 * HOUR_MS)]
    ran = run("live", "import", "made", written(tmp_path, *lines), "--yes", "--config", str(config))
    taken = run("live", "import", "made", written(tmp_path, line(4)), "--yes", "--config", str(config))
    records = await read_topic(watched.site.bootstrap, watched.source, until=lambda read: len(read) >= 1, timeout_seconds=60)

    assert (1, 0) == (ran.code, taken.code), ran.text + taken.text
    assert f"{setting}={HOUR_MS}: it takes no record older than 1 h, and 2 lines are, the first is line 2" in ran.err
    assert [4] == [orjson.loads(record.value)["id"] for record in records]


@pytest.mark.apache
async def test_lines_that_the_topic_does_not_keep_are_counted(watched: Watched, tmp_path: Path) -> None:
    config = watched.config(made=COUNT)
    async with admin_of(watched.site.bootstrap) as admin:
        await admin.create_topics([NewTopic(watched.source, 1, 1, topic_configs={"retention.ms": str(2 * HOUR_MS)})])
    lines = [line(1), line(2, ago_ms=3 * HOUR_MS), line(3, ago_ms=4 * HOUR_MS)]
    ran = run("live", "import", "made", written(tmp_path, *lines), "--config", str(config))

    assert 0 == ran.code, ran.text
    assert f"2 records older than {watched.source} is kept (2 h): the broker removes them soon" in ran.out
    assert "1 shown, 0 removed, 2 older than its expiry" in ran.out


@pytest.mark.apache
@pytest.mark.parametrize("item", ["id", None], ids=["named", "unnamed"])
async def test_interrupted_import_says_at_which_line_to_continue(watched: Watched, tmp_path: Path, item: str | None) -> None:
    view = {name: value for name, value in COUNT.items() if name != "item"} | ({"item": item} if item else {})
    config = watched.config(made=view)
    async with admin_of(watched.site.bootstrap) as admin:
        await admin.create_topics([NewTopic(watched.source, 1, 1, topic_configs={"max.message.bytes": "2000"})])
    lines = [line(number) for number in range(1, 700)]
    lines[549]["value"]["title"] = "t" * 5_000
    path = Path(written(tmp_path, *lines))
    ran = run("live", "import", "made", str(path), "--yes", "--config", str(config))
    records = await read_topic(watched.site.bootstrap, watched.source, until=lambda read: len(read) >= 549, timeout_seconds=60)
    there = {orjson.loads(record.value)["id"] for record in records}

    assert 1 == ran.code, ran.text
    assert "MessageSizeTooLargeError" in ran.err
    assert "all before line 550; line 550: " in ran.err
    assert "correct it, then import the file from line 550 on (tail -n +550): " in ran.err
    assert ("counts twice" in ran.err, "sent twice is one" in ran.err) == (item is None, item is not None)
    assert set(range(1, 550)) <= there
    assert 550 not in there


async def test_file_full_of_invalid_lines_is_summarized_by_the_first_ones_and_their_number(
    watched: Watched, tmp_path: Path
) -> None:
    config = watched.config(made=COUNT)
    await watched.topics()
    bad = [line(number, ago_ms=-HOUR_MS) if number % 2 else [number] for number in range(1, 1_001)]
    ran = run("live", "import", "made", written(tmp_path, *bad), "--yes", "--config", str(config))

    assert 1 == ran.code
    assert [str(number) for number in range(1, 21)] == re.findall(r"^\W*line (\d+): ", ran.err, re.MULTILINE), ran.err
    assert "line 21:" not in ran.err
    assert "and 980 other lines" in ran.err
