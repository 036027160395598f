"""A web view publishes an event, a subscriber works, and a dead letter is put back once its cause is mended.

Without servers, view and subscriber in one process: ``python -m examples.shop``. With them: ``streams-app topics create``,
``streams-app worker`` and ``python -m examples.shop streams.toml``, where ``streams.toml`` has

::

    [events]
    catalogue = "examples.shop:catalogue"

``curl -d '{"order_id": "o1", "cents": 500, "country": "de"}' localhost:8080/orders`` pays an order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiohttp import web

from streams_app import Catalogue, Event, Events, Received, Reject, Retries, Settings, subscriber
from streams_app.errors import BadEventError
from streams_app.local import LocalEvents

SERVED = os.environ.get("SHOP_COUNTRIES", "de,fr").split(",")
"""Where the carrier goes."""


class OrderPaid(msgspec.Struct, frozen=True):
    """What the view publishes."""

    order_id: str
    cents: int
    country: str


class ParcelSent(msgspec.Struct, frozen=True):
    """What follows from it."""

    order_id: str
    carrier: str


order_paid = Event("order.paid", OrderPaid, description="The money of an order has arrived.", keyed_by="order_id")
parcel_sent = Event("parcel.sent", ParcelSent, description="A parcel was handed over.", keyed_by="order_id")


@subscriber(order_paid, idempotent="yes", description="Hands the parcel to the carrier.", retry=Retries(attempts=5, first="1s"))
async def ship(event: Received[OrderPaid]) -> None:
    """The carrier knows an order by its id: a second call for one parcel is one parcel."""
    if event.data.country not in SERVED:
        raise Reject(f"no carrier goes to {event.data.country!r}")
    await event.publish(parcel_sent, ParcelSent(event.data.order_id, "post"))


catalogue = Catalogue(events=(order_paid, parcel_sent), subscribers=(ship,))

EVENTS = web.AppKey("EVENTS", Events)


async def pay(request: web.Request) -> web.Response:
    """The view: what it answers is in the log."""
    try:
        paid = msgspec.json.decode(await request.read(), type=OrderPaid)
        event_id = await request.app[EVENTS].publish(order_paid, paid, context={"userid": request.headers.get("X-User", "")})
    except (msgspec.MsgspecError, BadEventError) as error:
        return web.json_response({"error": str(error)}, status=400)
    return web.json_response({"event_id": event_id}, status=202)


def app_of(events: Events) -> web.Application:
    """The web application; it publishes by whatever it is given."""

    async def publishing(app: web.Application) -> AsyncIterator[None]:
        async with events as app[EVENTS]:
            yield

    app = web.Application()
    app.cleanup_ctx.append(publishing)
    app.router.add_post("/orders", pay)
    return app


if __name__ == "__main__":
    with_servers = len(sys.argv) > 1
    web.run_app(app_of(Events(Settings.load(Path(sys.argv[1]), os.environ), catalogue) if with_servers else LocalEvents(catalogue)))
