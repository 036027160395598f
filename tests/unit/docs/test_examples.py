"""The programs of examples/ do what they are documented to do."""

from __future__ import annotations

import httpx
import pytest

from examples import shop, social
from streams_app import Events, Settings
from streams_app.testing import FoldTester, SubscriberTester
from tests.helpers.waiting import wait_until

AN_ID = "12345678-1234-5678-1234-567812345678"


def test_functions_of_the_example_fold_its_events_under_their_documented_names() -> None:
    kit = FoldTester(social.app.settings.fold("account-metrics"))
    for value in (b"Anna;p7;likes=12;shares=3", b"anna;p8;likes=1;comments=0", b"anna;test;spam=1", b"ben;p9;likes=many", b"ben"):
        kit.send(value)
    (record,) = kit.advance("16m")

    assert {"account_id": "anna", "metrics": {"likes": 1, "shares": 3}} == {
        name: content for name, content in record.value.items() if name != "fold"
    }
    assert 2 == record.value["fold"]["events"]
    assert ["changed: ValueError", "decode: ValueError"] == [
        ": ".join(dead_letter.detail.split(": ")[:2]) for dead_letter in kit.dead_letters
    ]


def test_subscriber_of_the_shop_sends_what_the_carrier_accepts() -> None:
    with SubscriberTester(shop.catalogue) as kit:
        kit.publish(shop.order_paid, shop.OrderPaid("o1", 500, "de"))
        kit.publish(shop.order_paid, shop.OrderPaid("o2", 500, "no"))

        assert [shop.ParcelSent("o1", "post")] == [parcel.data for parcel in kit.published(shop.parcel_sent)]
        assert ["no carrier goes to 'no'"] == [dead_letter.detail for dead_letter in kit.dead_letters(shop.ship)]


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=shop.app), base_url="http://shop")


async def test_view_of_the_shop_publishes_and_reports_invalid_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMS_APP_CONFIG", raising=False)
    paid = {"order_id": "o1", "cents": 5, "country": "de"}
    async with shop.publishing(shop.app), client() as web:
        responses = [
            await web.post("/orders", json=body, params=query, headers={"x-user": "u7"})
            for body, query in [
                (paid, {}),
                (paid, {"event_id": AN_ID}),
                (paid, {"event_id": "7"}),
                ({"order_id": 3}, {}),
                ("x", {}),
                (paid | {"order_id": "o" * 600}, {}),
            ]
        ]
        await wait_until(lambda: shop.app.state.events._broker.end("parcel.sent") == 2, 60, "the parcels are sent")

    assert [(202, ["event_id"])] * 2 + [(400, ["error"])] * 4 == [(one.status_code, list(one.json())) for one in responses]
    assert AN_ID == responses[1].json()["event_id"]
    assert "body.order_id: Input should be a valid string; body.cents: Field required" in responses[3].text
    assert "the key has 600 bytes" in responses[5].text


async def test_view_of_the_shop_returns_the_id_of_an_unacknowledged_event() -> None:
    settings = Settings.model_validate(
        {"app_id": "shop", "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "events": {"catalogue": "a:b"}}
    )
    async with Events(settings, shop.catalogue, send_seconds=0.5) as shop.app.state.events, client() as web:
        answer = await web.post("/orders", params={"event_id": AN_ID}, json={"order_id": "o1", "cents": 5, "country": "de"})

    assert (503, AN_ID) == (answer.status_code, answer.json()["event_id"])
