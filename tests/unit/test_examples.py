"""The programs of examples/ do what they say."""

from __future__ import annotations

from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from examples import shop, social
from streams_app.local import LocalEvents
from streams_app.testing import FoldTester, SubscriberTester
from tests.helpers import wait_until


def test_functions_of_the_example_fold_its_events_under_the_names_they_are_given() -> None:
    kit = FoldTester(social.app.settings.fold("account-metrics"))
    for value in (b"Anna;p7;likes=12;shares=3", b"anna;p8;likes=1;comments=0", b"anna;test;spam=1", b"ben;p9;likes=many", b"ben"):
        kit.send(value)
    (record,) = kit.advance("16m")

    assert {"account_id": "anna", "metrics": {"likes": 1, "shares": 3}} == {
        name: held for name, held in record.value.items() if name != "fold"
    }
    assert 2 == record.value["fold"]["events"]
    assert ["changed: ValueError", "decode: ValueError"] == [
        ": ".join(letter.detail.split(": ")[:2]) for letter in kit.dead_letters
    ]


def test_the_subscriber_of_the_shop_sends_what_the_carrier_takes() -> None:
    with SubscriberTester(shop.catalogue) as kit:
        kit.publish(shop.order_paid, shop.OrderPaid("o1", 500, "de"))
        kit.publish(shop.order_paid, shop.OrderPaid("o2", 500, "no"))

        assert [shop.ParcelSent("o1", "post")] == [parcel.data for parcel in kit.published(shop.parcel_sent)]
        assert ["no carrier goes to 'no'"] == [letter.detail for letter in kit.dead_letters(shop.ship)]


async def test_the_view_of_the_shop_publishes_and_says_what_does_not_fit() -> None:
    events = LocalEvents(shop.catalogue)
    async with TestServer(shop.app_of(events)) as server, ClientSession() as session:

        async def posted(body: bytes) -> tuple[int, list[str]]:
            async with session.post(server.make_url("/orders"), data=body) as response:
                return response.status, list(await response.json())

        answers = [await posted(body) for body in (b'{"order_id": "o1", "cents": 5, "country": "de"}', b'{"order_id": 3}', b"x")]
        await wait_until(lambda: events._broker.end("parcel.sent") == 1, 60, "the parcel is sent")

    assert [(202, ["event_id"]), (400, ["error"]), (400, ["error"])] == answers
