"""Local mode: events are published and consumed in one process, without servers."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from opentelemetry.trace import StatusCode

from streams_app import Catalogue, Event, Received, Reject, Retries, records_of, subscriber
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.local import LocalEvents
from streams_app.local.settings import settings_of
from streams_app.settings.sections import TracingSettings, WorkerSettings
from tests.helpers.subscribers.local_mode import quick_settings
from tests.helpers.tracing.spans import Spans, ids_of, parent_of
from tests.helpers.waiting import wait_until
from tests.servers.cache import ROOT

LIMIT_SECONDS = 60


class Paid(msgspec.Struct, frozen=True):
    order_id: str


class Sent(msgspec.Struct, frozen=True):
    order_id: str
    carrier: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")
sent = Event("parcel.sent", Sent, description="Sent.", keyed_by="order_id")


class Shop:
    """Subscribers of both kinds of functions, and the events that they received."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        seen, life = self.seen, []

        @asynccontextmanager
        async def resources() -> AsyncIterator[None]:
            life.append("open")
            yield
            seen.append(("closed",))

        @subscriber(paid, idempotent="yes", description="Ships.", retry=Retries(attempts=3, first="10ms"))
        async def ship(event: Received[Paid]) -> None:
            assert life == ["open"]
            if event.attempt < 2:
                raise ConnectionError("the carrier is away")
            if event.data.order_id == "nowhere":
                raise Reject("nobody lives there")
            await event.publish(sent, Sent(event.data.order_id, "post"))

        @subscriber(sent, idempotent="yes", description="Notes.")
        def note(event: Received[Sent]) -> None:
            seen.append(("note", event.data.order_id, event.data.carrier, event.causation_id, event.context.get("userid")))

        @subscriber(sent, idempotent="yes", description="Publishes from a thread.")
        def bill(event: Received[Sent]) -> None:
            if event.data.carrier == "post":
                event.publish_sync(sent, Sent(event.data.order_id, "billed"))
            seen.append(("bill", event.data.order_id, event.data.carrier))

        self.catalogue = Catalogue(events=(paid, sent), subscribers=(ship, note, bill), lifespan=resources)

    async def until_seen(self, count: int) -> None:
        await wait_until(lambda: len(self.seen) >= count, LIMIT_SECONDS, f"{count} calls")


async def test_published_event_reaches_every_subscriber_with_retries_and_follow_up_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop()
    async with LocalEvents(shop.catalogue, quick_settings(shop.catalogue)) as events:
        event_id = await events.publish(paid, Paid("o1"), context={"userid": "u7"})
        await shop.until_seen(4)

    child = {one[3] for one in shop.seen if one[:3] == ("note", "o1", "billed")}
    assert {event_id} != child
    assert [
        ("bill", "o1", "billed"), ("bill", "o1", "post"), ("closed",), ("note", "o1", "billed", *child, "u7"),
        ("note", "o1", "post", event_id, "u7"),
    ] == sorted(shop.seen)  # fmt: skip
    assert "lost with this process" in caplog.text


def test_synchronous_program_publishes_and_its_subscribers_are_called() -> None:
    shop = Shop()
    with LocalEvents(shop.catalogue, quick_settings(shop.catalogue)) as events:
        events.publish_sync(paid, Paid("o1"))
        asyncio.run(shop.until_seen(4))

    assert ("closed",) == shop.seen[-1]


async def test_dead_letter_is_logged_in_local_mode(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    shop = Shop()
    async with LocalEvents(shop.catalogue, quick_settings(shop.catalogue)) as events:
        event_id = await events.publish(paid, Paid("nowhere"))
        await wait_until(lambda: caplog.records, LIMIT_SECONDS, "it is logged")

    (line,) = caplog.messages
    assert f"subscriber=ship reason=rejected event={event_id} attempts=2 detail=nobody lives there" in line
    assert "in ship" in line


async def test_invalid_event_is_rejected_as_in_production() -> None:
    async with LocalEvents(Shop().catalogue) as events:
        with pytest.raises(BadEventError, match=r"\$\.order_id"):
            await events.publish(paid, Paid(3))  # type: ignore[arg-type]  # the fault under test


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"event_id": 5}, "event_id = 5 is not a string"),
        ({"context": "u7"}, "context = 'u7' is not a mapping of names to text"),
        ({"metadata": {"method": "card"}}, "the event declares no metadata, so no subscriber could read it"),
    ],
)
async def test_invalid_metadata_is_rejected(options: dict[str, Any], text: str) -> None:
    async with LocalEvents(Shop().catalogue) as events:
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            await events.publish(paid, Paid("o1"), **options)


async def test_running_attempts_have_their_grace_when_the_program_ends() -> None:
    seen: list[str] = []

    @subscriber(paid, idempotent="unknown", description="Takes a moment.")
    async def ship(event: Received[Paid]) -> None:
        seen.append("begun")
        await asyncio.sleep(0.2)
        seen.append("ended")

    catalogue = Catalogue(events=(paid,), subscribers=(ship,))
    settings = settings_of("local", catalogue)
    settings = settings.model_copy(update={"worker": WorkerSettings(grace=timedelta(seconds=5))})
    async with LocalEvents(catalogue, settings) as events:
        await events.publish(paid, Paid("o1"))
        await wait_until(lambda: seen, LIMIT_SECONDS, "it has begun")

    assert ["begun", "ended"] == seen


async def test_rate_limit_is_respected() -> None:
    done: list[str] = []

    @subscriber(paid, idempotent="yes", description="Ships.", rate="2/h")
    def ship(event: Received[Paid]) -> None:
        done.append(event.data.order_id)

    async with LocalEvents(Catalogue(events=(paid,), subscribers=(ship,))) as events:
        await events.publish(paid, Paid("o1"))
        await events.publish(paid, Paid("o2"))
        await wait_until(lambda: done, LIMIT_SECONDS, "the first is called")

    assert ["o1"] == done


async def test_subscriber_of_a_fold_needs_no_settings_for_it() -> None:
    @subscriber(records_of("account-metrics", Paid), idempotent="yes", description="Recomputes.")
    def recompute(event: Received[Paid]) -> None:
        raise NotImplementedError

    async with LocalEvents(Catalogue(events=(paid,), subscribers=(recompute,))) as events:
        assert await events.publish(paid, Paid("o1"))


UNCLOSED = """
from streams_app import Catalogue, subscriber
from streams_app.local import LocalEvents
from tests.unit.local.test_events import Paid, paid

@subscriber(paid, idempotent="yes", description="Ships.")
def ship(event):
    pass

LocalEvents(Catalogue(events=(paid,), subscribers=(ship,))).publish_sync(paid, Paid("o1"))
"""


def test_script_that_never_closes_local_mode_warns_in_one_line() -> None:
    ended = subprocess.run([sys.executable, "-c", UNCLOSED], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, 1) == (ended.returncode, len(ended.stderr.splitlines())), ended.stderr
    assert "lost with this process" in ended.stderr


async def test_spans_of_local_mode_are_those_of_the_worker(spans: Spans) -> None:
    shop = Shop()
    settings = quick_settings(shop.catalogue).model_copy(update={"tracing": TracingSettings(enabled=True)})
    async with LocalEvents(shop.catalogue, settings) as events:
        await events.publish(paid, Paid("o1"))
        await shop.until_seen(4)
    found = spans.all()
    (paid_span,) = (span for span in found if span.name == "publish order.paid")
    attempts = [span for span in found if span.name == "process order.paid"]

    assert {"publish order.paid": 1, "process order.paid": 2, "publish parcel.sent": 2, "process parcel.sent": 4} == dict(
        Counter(span.name for span in found)
    )
    assert [ids_of(paid_span)] * 2 == [parent_of(span) for span in attempts]
    assert {ids_of(paid_span)[0]} == {ids_of(span)[0] for span in found}
    assert [StatusCode.ERROR, StatusCode.UNSET] == [span.status.status_code for span in attempts]


async def test_function_that_erases_a_key_runs_on_the_loop_of_the_functions() -> None:
    seen: list[tuple[str, bool]] = []
    here = asyncio.get_running_loop()

    async def erase(key: str) -> None:
        seen.append((key, asyncio.get_running_loop() is here))

    @subscriber(paid, idempotent="yes", description="Ships.", forget=erase)
    def ship(event: Received[Paid]) -> None: ...

    events = LocalEvents(Catalogue([paid], [ship]))
    with pytest.raises(RuntimeError, match="only within"):
        await events.forget("anna")
    async with events:
        await events.forget("anna")

    assert [("anna", False)] == seen
