"""Dead letters in the console: by reason and origin, and one of them in words."""

from __future__ import annotations

from pathlib import Path

from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import running_console, with_console
from tests.helpers.kafka.topics import create_topics, produce

DETAIL = "account_id is missing or null, not a string, a number or a boolean"


async def rejected(app: Place, reason: str, count: int, value: bytes = b'{"metrics": {"likes": 1}}') -> None:
    source, _, dead = app.topics
    headers = {"reason": reason, "detail": DETAIL, "fold": FOLD, "app-id": app.names.app_id, "source-topic": source}
    headers |= {"source-partition": "0", "source-offset": "7", "failed-at-ms": "1700000000000"}
    packed = [(name, text.encode()) for name, text in headers.items()]
    await produce(app.bootstrap, dead, [(b"k", value)] * count, headers=packed, partition=0)


async def test_dead_letters_are_counted_by_reason_and_origin(app: Place) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=2)
    await rejected(app, "no-group", 3)
    await rejected(app, "<b>odd</b>", 60)
    await produce(app.bootstrap, app.topics[2], [(b"k", b"")], headers=[("streams-app-put-back", b"x")], partition=1)
    async with running_console(Settings.load(Path(app.config()), {})) as console:
        found = (await console.json(f"/topics/{app.topics[2]}.json"))["records"]
        of_source = (await console.json(f"/topics/{app.topics[0]}.json"))["records"]
        of_key = (await console.json(f"/topics/{app.topics[2]}.json?key=k"))["records"]
        _, text, _ = await console.get(f"/topics/{app.topics[2]}")
    summary = found["dead_letters"]

    assert (63, 64, True, 50) == (summary["total"], found["read"], found["is_whole"], len(found["rows"]))
    assert [("<b>odd</b>", 60, f"fold {FOLD}"), ("no-group", 3, f"fold {FOLD}")] == [
        (row["reason"], row["count"], row["component"]) for row in summary["rows"]
    ]
    assert [f"/folds/{FOLD}", app.topics[0]] == [summary["rows"][0][name] for name in ("link", "source")]
    assert None is of_source["dead_letters"] is of_key["dead_letters"]
    assert "<b>odd" not in text and "All 64 records of the topic were counted." in text


async def test_dead_letter_has_its_reason_in_words_the_failing_field_and_what_to_do(app: Place) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    await rejected(app, "no-group", 1)
    path = f"/topics/{app.topics[2]}/dead-letter"
    settings = Settings.load(Path(app.config()), {})
    async with running_console(settings) as console:
        page = (await console.json(f"{path}.json?partition=0&offset=0"))["dead_letter"]
        status, text, _ = await console.get(f"{path}?partition=0&offset=0")
        listed = (await console.get(f"/topics/{app.topics[2]}"))[1]
        search = await console.get(f"/search?q={app.topics[2]}:0:0")
        beyond = f"partition=0&offset={10**19}"
        others = [
            (await console.get(f"{path}?{query}"))[0]
            for query in (
                "partition=0&offset=9",
                "partition=7&offset=0",
                "partition=0",
                "partition=x&offset=0",
                beyond,
            )
        ]
        source = await console.get(f"/topics/{app.topics[0]}/dead-letter?partition=0&offset=0")
    async with running_console(with_console(settings, hide_values=True)) as console:
        _, hidden, _ = await console.get(f"{path}?partition=0&offset=0")

    assert (200, "account_id", True, ["{"]) == (
        status, page["path"], page["is_absent"], [line["text"] for line in page["lines"] if line["is_failing"]],
    )  # fmt: skip
    assert "missing: account_id" in text and "The event has no group: a field of <code>group_key</code>" in text
    assert f"streams-app dead-letters replay --fold {FOLD} --offset 0:7 --dry-run" in page["commands"]
    assert "dead-letter?partition=0&amp;offset=0" in listed and "dead-letter?partition=0" in search[1]
    assert ([200, 200, 400, 400, 400], 404) == (others, source[0])
    assert "account_id" not in hidden and "likes" not in hidden
