"""Actions of the console: what each leaves behind is what its command leaves, and it shows a plan before."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.shard_store import ShardStore
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place, run
from tests.helpers.console.consoles import RunningConsole, running_console, token_file, with_console
from tests.helpers.console.forms import FormBrowser, forms_in
from tests.helpers.folding.scripts import open_in, seal
from tests.helpers.kafka.topics import create_topics
from tests.helpers.waiting import wait_until

AUDIT = re.compile(r"^\S+ \S+ audit (.*) by=(.*)$", re.MULTILINE)
LIMIT_SECONDS = 60
KEYS = ("anna", "bert", "<i>&'\"")


@pytest.fixture
def settings(app: Place) -> Settings:
    return with_console(Settings.load(Path(app.config()), {}), allow_actions=True)


async def opened(app: Place, client: Redis, keys: tuple[str, ...] = KEYS) -> ShardStore:
    """Open a group for each key."""
    events = [FoldEvent(number, 1_000 + number, b"s" + key.encode(), {"likes": 1}) for number, key in enumerate(keys)]
    return await open_in(app.names.app_id, FOLD, app.topics[0], client, 0, events)


@asynccontextmanager
async def owned(store: ShardStore, fence: int = 2) -> AsyncIterator[None]:
    """Carry out requests for a shard that was folded up to an offset, as its owner does in each pass."""

    async def passes() -> None:
        while True:
            await wait_until(lambda: store.redis.exists(store.keys.flush, store.keys.drop), LIMIT_SECONDS, "a request is in Redis")
            await seal(store, fence, 0)

    owner = asyncio.create_task(passes())
    try:
        yield
    finally:
        assert not owner.done(), owner.result()
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


async def state_of(store: ShardStore) -> dict[str, Any]:
    """Return all that a shard has in Redis, without what depends on the time and the user."""
    found: dict[str, Any] = {}
    async for key in store.redis.scan_iter(match=f"{store.keys.first.rpartition(':')[0]}*"):
        kind: Any = await store.redis.type(key)
        reads: dict[str, Any] = {
            "hash": store.redis.hgetall, "zset": lambda key: store.redis.zrange(key, 0, -1, withscores=True),
            "set": store.redis.smembers, "string": store.redis.get,
        }  # fmt: skip
        content = await reads[kind.decode()](key)
        text = repr(sorted(content.items()) if isinstance(content, dict) else content)  # a large hash has no order
        found[key.decode()] = re.sub(r'\["[^"]*",', "[BY,", text)
    return found


GROUP_ACTIONS: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
    "flush": (("groups", "flush", "anna"), f"flush?fold={FOLD}&key=anna", {}),
    "flush-all": (("groups", "flush", "--all"), f"flush-all?fold={FOLD}", {"confirm": FOLD}),
    "drop": (
        ("groups", "drop", "anna", "--yes", "--reason", "a loop"), f"drop?fold={FOLD}&key=anna",
        {"confirm": "anna", "reason": "a loop"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUP_ACTIONS)
async def test_action_leaves_the_state_output_and_audit_line_of_its_command(
    app: Place, settings: Settings, redis_client: Redis, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, path, given = GROUP_ACTIONS[name]
    store = await opened(app, redis_client)
    async with owned(store):
        ran = await asyncio.to_thread(run, *words, "--config", app.config())
    by_command = await state_of(store)
    await redis_client.delete(*by_command)
    store = await opened(app, redis_client)
    async with running_console(settings) as console, owned(store):
        browser = FormBrowser(console)
        status, shown = await browser.open(f"/actions/{path}")
        (form,) = forms_in(shown)
        sent, _, job = await browser.send(form, **given)
        result = await browser.ended(job)

    assert (0, 200, 303) == (ran.code, status, sent), ran.text
    assert "Done." in result, result
    assert ran.out.strip() in result
    assert by_command == await state_of(store)
    assert AUDIT.findall(ran.err)[0][0] == AUDIT.findall(capsys.readouterr().err)[0][0]


async def test_plan_is_shown_before_and_names_what_is_typed(app: Place, settings: Settings, redis_client: Redis) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    store = await opened(app, redis_client)
    before = await state_of(store)
    ran = await asyncio.to_thread(run, "groups", "drop", "anna", "--config", app.config())
    async with running_console(settings) as console:
        browser = FormBrowser(console)
        _, group = await browser.open(f"/folds/{FOLD}/group?key=anna")
        _, shown = await browser.open(f"/actions/drop?fold={FOLD}&key=anna")
        (form,) = forms_in(shown)
        faults = [
            await browser.send(form, reason="x", confirm="ann"), await browser.send(form, reason="x"),
            await browser.send(form, reason=" ", confirm="anna"),
        ]  # fmt: skip

    assert f'href="/actions/drop?fold={FOLD}&amp;key=anna"' in group
    assert ran.out.splitlines()[0] in shown
    assert [422] * 3 == [status for status, _, _ in faults]
    assert [True, True, False] == ["write anna to confirm it. Nothing was done" in text for _, text, _ in faults]
    assert "Why is needed" in faults[2][1]
    assert before == await state_of(store)


async def test_plan_that_does_not_hold_any_more_is_shown_anew(app: Place, settings: Settings, redis_client: Redis) -> None:
    store = await opened(app, redis_client)
    async with running_console(settings) as console:
        browser = FormBrowser(console)
        (gone,) = forms_in((await browser.open(f"/actions/flush?fold={FOLD}&key=anna"))[1])
        (other,) = forms_in((await browser.open(f"/actions/drop?fold={FOLD}&key=bert"))[1])
        await redis_client.delete(*await state_of(store))
        store = await open_in(app.names.app_id, FOLD, app.topics[0], redis_client, 0, [FoldEvent(7, 2_000, b"sbert", {"likes": 1})])
        before = await state_of(store)
        closed = await browser.ended((await browser.send(gone))[2])
        reopened = await browser.ended((await browser.send(other, confirm="bert", reason="x"))[2])
        untouched = await state_of(store)
        (renewed,) = forms_in(reopened)
        async with owned(store, 7):
            done = await browser.ended((await browser.send(renewed, confirm="bert", reason="x"))[2])

    for text in (closed, reopened):
        assert "Nothing was done: it is not as the plan said any more." in text
    assert "anna is not open in fold" in closed
    assert "offsets 7 to 7" in reopened
    assert before == untouched
    assert "dropped 1 group with 1 event, without a record" in done


async def test_two_browsers_that_confirm_the_same_begin_one_action(
    app: Place, settings: Settings, redis_client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await opened(app, redis_client)
    async with running_console(settings) as console:
        first, second = FormBrowser(console), FormBrowser(console)
        forms = [forms_in((await one.open(f"/actions/flush?fold={FOLD}&key=anna"))[1])[0] for one in (first, second)]
        jobs = [(await first.send(forms[0]))[2], (await first.send(forms[0]))[2], (await second.send(forms[1]))[2]]
        async with owned(store):
            await first.ended(jobs[0])
        late = (await first.send(forms[0]))[2]

    assert 1 == len({*jobs, late})
    assert 1 == len(AUDIT.findall(capsys.readouterr().err))


async def test_console_without_actions_has_none_of_them(app: Place, settings: Settings, redis_client: Redis) -> None:
    await opened(app, redis_client)
    off = with_console(settings)
    async with running_console(settings) as console:
        browser = FormBrowser(console)
        (form,) = forms_in((await browser.open(f"/actions/flush?fold={FOLD}&key=anna"))[1])
    async with running_console(off) as console:
        browser.console = console
        answers = [
            (await browser.open(f"/actions/flush?fold={FOLD}&key=anna"))[0], (await browser.send(form))[0],
            (await console.post("/actions/flush.json", json={}))[0], (await console.get("/actions/jobs/1"))[0],
        ]  # fmt: skip
        pages = [(await console.get(path))[1] for path in ("/", f"/folds/{FOLD}", f"/folds/{FOLD}/group?key=anna")]
        document = await console.json("/openapi.json")

    assert [404] * 4 == answers
    assert not any("/actions" in text for text in [*pages, *document["paths"]])


async def attacks(browser: FormBrowser, other: FormBrowser) -> AsyncIterator[tuple[str, int]]:
    path = f"/actions/flush?fold={FOLD}&key=anna"
    (form,) = forms_in((await browser.open(path))[1])
    (foreign,) = forms_in((await other.open(path))[1])
    token, post = form.values["token"][0], form.path
    for name, origin in (("another site", "https://evil.example.com"), ("null", "null"), ("no origin", None)):
        yield name, (await browser.send(form, origin=origin))[0]
    end, _, signature = token.partition(".")
    tokens = {
        "no token": "", "a token of another browser": foreign.values["token"][0], "an older token": f"1.{signature}",
        "a changed token": f"{end}.{signature[::-1]}", "no number": f"x.{signature}", "NUL": "\0", "a long token": "1" * 2_000,
    }  # fmt: skip
    for name, wrong in tokens.items():
        yield name, (await browser.send(form, token=wrong))[0]
    cookies, browser.cookies = browser.cookies, {}
    yield "no cookie", (await browser.send(form))[0]
    browser.cookies = cookies
    headers = {"Origin": browser.console.url, "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    parts = headers | {"Content-Type": "multipart/form-data; boundary=x"}
    requests: dict[str, dict[str, Any]] = {
        "multipart": {"data": f"token={token}", "headers": parts},
        "text": {"data": f"token={token}", "headers": headers | {"Content-Type": "text/plain"}},
        "huge": {"data": {"key": "k" * 100_000, "token": token}, "headers": headers},
        "many fields": {"data": [("fold", FOLD), *(("key", str(at)) for at in range(600)), ("token", token)], "headers": headers},
        "another name of the host": {"data": {"token": token}, "headers": headers | {"Host": "evil.example.com"}},
    }
    for name, options in requests.items():
        yield name, (await browser.console.post(post, **options))[0]
    for name, method in (("a plan by GET", f"{post}/plan"), ("a stop by GET", "/actions/jobs/1/stop")):
        yield name, (await browser.open(method))[0]
    yield "an unknown action", (await browser.send(form._replace(path="/actions/nothing")))[0]


ANSWERS = {
    "NUL": 400, "multipart": 415, "text": 415, "huge": 413, "many fields": 400, "a plan by GET": 405, "a stop by GET": 405,
    "an unknown action": 404,
}  # fmt: skip


async def test_attack_does_nothing(app: Place, settings: Settings, redis_client: Redis) -> None:
    store = await opened(app, redis_client)
    before = await state_of(store)
    async with running_console(settings) as console:
        found = {name: status async for name, status in attacks(FormBrowser(console), FormBrowser(console))}
        confirmed, _, _ = await console.get(f"/actions/flush?fold={FOLD}&key=anna&plan=x&token=x&confirm=anna")

    assert {name: ANSWERS.get(name, 403) for name in found} == found
    assert 200 == confirmed
    assert before == await state_of(store)


async def test_program_confirms_with_the_token_and_not_with_a_cookie_alone(
    app: Place, settings: Settings, redis_client: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = await opened(app, redis_client)
    with_token = with_console(settings, allow_actions=True, token_file=token_file(tmp_path), user_header="X-User")
    bearer = {"Authorization": "Bearer right", "X-User": "anna smith events=9"}
    asked = {"fold": FOLD, "key": "anna"}
    async with running_console(with_token) as console:
        entered = await console.post("/login", data={"token": "right"})
        cookie = {"Cookie": entered[2]["Set-Cookie"].partition(";")[0]}
        by_cookie = await console.post("/actions/flush/plan.json", json=asked, headers=cookie)
        without = await console.post("/actions/flush/plan.json", json=asked)
        plan = await json_of(console, "/actions/flush/plan.json", bearer, asked)
        unconfirmed = await console.post("/actions/flush.json", json=asked | {"plan": plan["plan"]["fingerprint"]}, headers=bearer)
        unknown = await console.post("/actions/flush.json", json=asked | {"force": True}, headers=bearer)
        of_other_site = await console.post(
            "/actions/flush.json", json=asked, headers=bearer | {"Origin": "https://evil.example.com"}
        )
        confirmed = asked | {"plan": plan["plan"]["fingerprint"], "confirm": "anna"}
        async with owned(store):
            done = await json_of(console, "/actions/flush.json", bearer, confirmed)
        late = await json_of(console, "/actions/flush.json", bearer, confirmed)
        attempts = [
            (await console.post("/actions/flush.json", json=asked, headers={"Authorization": f"Bearer {number}"}))[0]
            for number in range(1_000)
        ]

    assert [403, 401, 422, 400, 403] == [one[0] for one in (by_cookie, without, unconfirmed, unknown, of_other_site)]
    assert ("planned", "anna") == (plan["state"], plan["object"])
    assert ("done", ["flushed 1 group in 1 partition"]) == (done["state"], done["lines"])
    assert ("changed", []) == (late["state"], late["lines"])
    assert [401] * 10 + [429] * 990 == attempts
    (line,) = AUDIT.findall(capsys.readouterr().err)
    assert (f"flush fold={FOLD} group='anna' groups=1", '"anna smith events=9"(127.0.0.1)') == line


async def json_of(console: RunningConsole, path: str, headers: dict[str, str], body: dict[str, Any]) -> Any:
    return await console.json(path, method="POST", json=body, headers=headers)


async def test_hidden_key_is_confirmed_by_its_hash_and_shown_nowhere(app: Place, settings: Settings, redis_client: Redis) -> None:
    store = await opened(app, redis_client, ("secret-account",))
    hidden = with_console(settings, allow_actions=True, hide_values=True)
    async with running_console(hidden) as console:
        browser = FormBrowser(console)
        (row,) = (await console.json(f"/folds/{FOLD}.json"))["groups"]["rows"]
        _, shown = await browser.open(f"/actions/drop?fold={FOLD}&key=secret-account")
        (form,) = forms_in(shown)
        async with owned(store, 0):
            job = (await browser.send(form, confirm=row["group"], reason="x"))[2]
            done = await browser.ended(job)
        late = await browser.ended((await browser.send(form, confirm=row["group"], reason="x", once="other"))[2])

    assert row["group"] in shown and "would drop #" in shown and "likes" not in shown
    for text in (shown, done, late):
        assert "secret-account" not in re.sub(r'(value|href)="[^"]*"', "", text).partition("</head>")[2]
    assert "dropped 1 group" in done
    assert f"{row['group']} is not open" in late
