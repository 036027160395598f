"""Replay of dead letters, reset of a subscriber and repair of a read store by the console: each as its command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.operations.reset_offsets import plan_offsets
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import subscription_named
from streams_app.subscribers.running.agent import RetryPolling
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.retry_requests import RetryRequests
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import FOLD, Place, Ran, run
from tests.helpers.console.consoles import RunningConsole, running_console, with_console
from tests.helpers.console.forms import FormBrowser, SeenForm, forms_in
from tests.helpers.console.shown import CATALOGUE
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.worker.site import Stage
from tests.integration.console.test_console_actions import AUDIT
from tests.integration.read_store.compared import Compared, folded

LIMIT_SECONDS = 60


@asynccontextmanager
async def acting(settings: Settings) -> AsyncIterator[tuple[RunningConsole, FormBrowser]]:
    async with running_console(with_console(settings, allow_actions=True)) as console:
        yield console, FormBrowser(console)


async def plan_of(browser: FormBrowser, path: str, **values: str) -> tuple[str, list[SeenForm]]:
    """Ask for a plan that takes long; return its page and the forms to confirm it."""
    (form,) = forms_in((await browser.open(path))[1])
    status, text, job = await browser.send(form, **values)
    assert 303 == status, text
    shown = await browser.ended(job)
    return shown, forms_in(shown)


# Replay


async def write_dead_letters(app: Place, count: int, first: int = 0) -> None:
    """Write dead letters that pass now, and one that is rejected again, as workers of the fold would."""
    source, _, dead = app.topics
    async with AIOKafkaProducer(bootstrap_servers=app.bootstrap, acks="all") as producer:
        for offset in range(first, first + count):
            key, value = event(f"g{offset}", "likes") if offset else (b"g", b"no json")
            headers = {
                "reason": "no-changed" if offset else "not-json", "fold": FOLD, "source-topic": source, "source-partition": "0",
                "source-offset": str(offset), "failed-at-ms": "1", "detail": "", "app-id": app.names.app_id,
            }  # fmt: skip
            await producer.send_and_wait(dead, value, key, headers=[(name, text.encode()) for name, text in headers.items()])


def has_at_least(count: int, found: Sequence[object]) -> bool:
    return len(found) >= count


async def topics_of(app: Place, events: int, dead_letters: int) -> list[list[tuple[Any, ...]]]:
    """Return source and dead-letter topic, without the name of the application."""
    found = []
    for topic, count in ((app.topics[0], events), (app.topics[2], dead_letters)):
        is_enough = partial(has_at_least, count)
        records = await read_topic(app.bootstrap, topic, until=is_enough, timeout_seconds=LIMIT_SECONDS)
        own = app.names.app_id.encode()
        found.append(
            [(one.partition, one.key, len(one.value or b""), [(name, text.replace(own, b"APP")) for name, text in one.headers])
             for one in records]
        )  # fmt: skip
    return found


@pytest.fixture
async def applications(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> list[tuple[Place, Settings]]:
    """Return two applications with the same dead letters: one for the command, one for the console."""
    made = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        app = Place(Names(f"{names.app_id}-{number}"), kafka.bootstrap_servers, redis_server.url, folder)
        await create_topics(app.bootstrap, app.topics, partitions=1)
        await write_dead_letters(app, 4)
        made.append((app, Settings.load(Path(app.config()), {})))
    return made


@pytest.mark.parametrize("positions", [(), ("0:1", "0:3")], ids=["all", "selected"])
async def test_replay_leaves_the_state_output_and_audit_line_of_its_command(
    applications: list[tuple[Place, Settings]], positions: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (by_command, _), (by_console, settings) = applications
    words = ["dead-letters", "replay", *(word for position in positions for word in ("--offset", position))]
    dry = await asyncio.to_thread(run, *words, "--dry-run", "--config", by_command.config())
    ran = await asyncio.to_thread(run, *words, "--config", by_command.config())
    chosen = "".join(f"&offset={position}" for position in positions)
    async with acting(settings) as (_, browser):
        given = {"offset": "\n".join(positions)} if positions else {}
        plan, (form,) = await plan_of(browser, f"/actions/replay?of=fold:{FOLD}{chosen}", **given)
        done = await browser.ended((await browser.send(form))[2])
        late = await browser.ended((await browser.send(form, once="other"))[2])

    count = len(positions) or 3
    assert all(line in plan for line in dry.out.splitlines()), (plan, dry.text)
    assert all(line in done for line in ran.out.splitlines()), (done, ran.text)
    assert f"{count} replayed" in done
    assert "Nothing was done: it is not as the plan said any more." in late
    assert await topics_of(by_command, count, 5) == await topics_of(by_console, count, 5)
    assert [AUDIT.findall(ran.err)[0][0]] == [line for line, _ in AUDIT.findall(capsys.readouterr().err)]


async def test_replay_sends_no_more_events_than_its_plan_said(applications: list[tuple[Place, Settings]]) -> None:
    app, settings = applications[0]
    async with acting(settings) as (_, browser):
        plan, (form,) = await plan_of(browser, f"/actions/replay?of=fold:{FOLD}")
        await write_dead_letters(app, 5, 4)
        done = await browser.ended((await browser.send(form))[2])

    assert "dry run: 3 would pass now" in plan
    assert "3 replayed, 1 rejected again" in done
    assert "the limit is reached: the rest can be replayed later" in done


async def test_dead_letters_are_selected_for_a_replay_and_one_is_replayed(applications: list[tuple[Place, Settings]]) -> None:
    app, settings = applications[0]
    topic = f"/topics/{app.topics[2]}"
    async with acting(settings) as (console, browser):
        _, shown = await browser.open(topic)
        one = await console.json(f"{topic}/dead-letter.json?partition=0&offset=2")
        of_one = await browser.open(one["dead_letter"]["actions"][0]["link"])
    async with running_console(settings) as console:
        _, read_only, _ = await console.get(topic)
        other = await console.json(f"{topic}/dead-letter.json?partition=0&offset=2")

    assert 4 == shown.count('form="selection" name="offset"')
    assert f'name="of" value="fold:{FOLD}"' in shown
    assert (200, True) == (of_one[0], ">0:2</textarea>" in of_one[1])
    assert "/actions" not in read_only and [] == other["dead_letter"]["actions"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("of=fold:nothing", 404), ("of=view:x", 404), ("", 404), (f"of=fold:{FOLD}&offset=x", 400),
        (f"of=fold:{FOLD}&offset=1:-1", 400),
        (f"of=fold:{FOLD}&reason=%3Cscript%3E", 400), (f"of=fold:{FOLD}&since=never", 400), (f"of=fold:{FOLD}&limit=0", 400),
        (f"of=fold:{FOLD}&interrupted=yes", 400), (f"of=fold:{FOLD}&key=a%00b", 400),
        (f"of=fold:{FOLD}&key=%3C%2Ftextarea%3E%3Cscript%3E", 200),
    ],
)  # fmt: skip
async def test_bad_selection_is_rejected_with_what_is_wrong(app: Place, query: str, status: int) -> None:
    async with acting(Settings.load(Path(app.config()), {})) as (_, browser):
        found, text = await browser.open(f"/actions/replay?{query}")

    assert status == found
    assert "<script>" not in text.partition("<body>")[2]


# Reset


async def test_reset_leaves_the_state_output_and_audit_line_of_its_command(
    app: Place, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = app.names.topic("paid")
    await create_topics(app.bootstrap, [topic, f"{topic}.ship.dead", f"{app.names.app_id}.again"], partitions=2)
    await produce(app.bootstrap, topic, [(b"o", b"{}")] * 5)
    module = f"console_reset_{app.names.app_id.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(CATALOGUE.replace("TOPIC", topic))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = app.config(extra=f'[events]\ncatalogue = "{module}:catalogue"\n')
    settings = Settings.load(Path(config), {})
    one = subscription_named(settings, "ship")
    words = ("reset", "--subscriber", "ship", "--config", config)

    async def command(*more: str) -> Ran:
        return await asyncio.to_thread(run, *words, *more, PYTHONPATH=str(tmp_path))

    async def state() -> Any:
        return (await plan_offsets(settings, one, "latest")).present

    await command("--at", "latest", "--yes")
    plan, ran = await command("--at", "earliest"), await command("--at", "earliest", "--yes")
    by_command = await state()
    await command("--at", "latest", "--yes")
    async with acting(settings) as (console, browser):
        offered = (await console.json("/subscribers/ship.json"))["actions"]
        link = next(one["link"] for one in offered if one["action"] == "reset")
        (asking,) = forms_in((await browser.open(link))[1])
        wrong = await browser.open(f"{link}&at=yesterday")
        _, shown = await browser.open(f"{link}&at=earliest")
        form = forms_in(shown)[1]
        unconfirmed = await browser.send(form)
        done = await browser.ended((await browser.send(form, confirm="ship"))[2])
        late = await browser.ended((await browser.send(form, confirm="ship", once="other"))[2])

    assert (0, 422) == (ran.code, unconfirmed[0]), ran.text
    assert ["ship"] == asking.values["subscriber"]
    assert all(line.strip() in shown for line in plan.out.splitlines()[:-1]), (shown, plan.text)
    assert "neither earliest nor latest" in wrong[1]
    assert "Done." in done, done
    assert "Nothing was done" in late
    assert by_command == await state()
    assert [AUDIT.findall(ran.err)[0][0]] == [line for line, _ in AUDIT.findall(capsys.readouterr().err)]


async def test_retry_shows_what_waits_and_prints_what_its_command_prints_and_the_same_audit_line(
    app: Place, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = app.names.topic("paid")
    await create_topics(app.bootstrap, [topic, f"{topic}.ship.dead"], partitions=1)
    module = f"console_retry_{app.names.app_id.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(CATALOGUE.replace("TOPIC", topic))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = app.config(extra=f'[events]\ncatalogue = "{module}:catalogue"\n')
    waiting = SubscriberKeys(app.names.app_id, "ship", topic, 0).state[1]
    await redis_client.hset(waiting, mapping={"7": f"2 0 {SystemClock().now_ms() + 3_600_000}", "8": "1 0 0", "-1": "1 0 0"})
    worker = RetryPolling(RetryRequests(redis_client, app.names.app_id, "ship"), lambda: 3, lambda: True)
    words = ("events", "retry", "ship", "--config", config)
    worker.start()
    plan = await asyncio.to_thread(run, *words, PYTHONPATH=str(tmp_path))
    ran = await asyncio.to_thread(run, *words, "--yes", PYTHONPATH=str(tmp_path))
    async with acting(Settings.load(Path(config), {})) as (console, browser):
        page = await console.json("/subscribers/ship.json")
        _, html = await browser.open("/subscribers/ship")
        offered = page["actions"]
        _, shown = await browser.open(next(one["link"] for one in offered if one["action"] == "retry"))
        done = await browser.ended((await browser.send(forms_in(shown)[-1]))[2])
    worker.stop()

    assert ["retry", "reset", "replay"] == [one["action"] for one in offered]
    assert [(f"{topic}:0:7", 2)] == [(one["position"], one["attempts"]) for one in page["waiting"]["rows"]]
    assert f"{topic}:0:7</a>" in html
    assert "1 event of subscriber ship would be retried now" in plan.out and "1 event of subscriber ship" in shown
    assert "3 events retried now by 1 worker" == ran.out.strip()
    assert ran.out.strip() in done
    assert [AUDIT.findall(ran.err)[0][0]] == [line for line, _ in AUDIT.findall(capsys.readouterr().err)]


# Repair


async def test_repair_leaves_the_state_output_and_audit_line_of_its_command(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = Compared(stage, f"sqlite:///{stage.folder}/both.db")
    await compared.prepare(("a", "likes", 1), ("<b>", "likes", 3))
    await compared.send(folded("a", 10, ["likes"]), folded("<b>", 11, ["likes"]))
    assert 0 == compared.run("rebuild").code
    rows = "SELECT group_key, name, value, version FROM folded_values ORDER BY 1, 2"
    await compared.execute("UPDATE folded_values SET value = 7")
    plan = compared.run("verify", "--wait", "0")
    ran = compared.run("verify", "--repair", "--wait", "0")
    by_command = await compared.rows(rows)
    await compared.execute("UPDATE folded_values SET value = 7")
    async with acting(Settings.load(compared.config, {})) as (console, browser):
        link = (await console.json("/read-stores/dashboard.json"))["actions"][0]["link"]
        shown, (form,) = await plan_of(browser, link)
        unconfirmed = await browser.send(form, confirm="dash")
        done = await browser.ended((await browser.send(form, confirm="dashboard"))[2])
        equal, forms = await plan_of(browser, link)

    assert (1, 0, 422) == (plan.code, ran.code, unconfirmed[0])
    assert all(line in shown for line in plan.out.splitlines()[3:])
    assert "&lt;b&gt;" in shown and "<b>" not in shown
    assert "Done." in done and "2 repaired" in done, done
    assert [] == forms and "There is no difference: nothing to repair." in equal
    assert by_command == await compared.rows(rows)
    assert [AUDIT.findall(ran.err)[0][0]] == [re.sub(r" at=\d+", "", line) for line, _ in AUDIT.findall(capsys.readouterr().err)]
