"""A web view publishes an event, a subscriber works, and a dead letter is put back once its cause is mended.

The view is a FastAPI application, which the package itself does not need: ``pip install fastapi uvicorn``. Without servers, view
and subscriber in one process::

    uvicorn examples.shop:app
    curl localhost:8000/orders --json '{"order_id": "o1", "cents": 500, "country": "de"}'

With servers, where ``streams.toml`` says where they are and has ``[events]`` with ``catalogue = "examples.shop:catalogue"``::

    streams-app topics create
    streams-app worker
    STREAMS_APP_CONFIG=streams.toml uvicorn examples.shop:app

In an application of some size events and subscribers have a module of their own, and workers need nothing of the web.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from streams_app import Catalogue, Event, Events, Received, Reject, Retries, Settings, subscriber
from streams_app.errors import BadEventError, NotPublishedError
from streams_app.local import LocalEvents

SERVED = os.environ.get("SHOP_COUNTRIES", "de,fr").split(",")
"""Where the carrier goes."""


@dataclass(frozen=True)
class OrderPaid:
    """The body of a request, and what the view publishes."""

    order_id: str
    cents: int
    country: str


@dataclass(frozen=True)
class ParcelSent:
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
    print(f"the parcel of {event.data.order_id} goes by post", flush=True)


catalogue = Catalogue(events=(order_paid, parcel_sent), subscribers=(ship,))


@asynccontextmanager
async def publishing(app: FastAPI) -> AsyncGenerator[None]:
    """Opens what the view publishes by: the servers of the settings, or the memory of this process where none are named."""
    config = os.environ.get("STREAMS_APP_CONFIG")
    async with Events(Settings.load(Path(config), os.environ), catalogue) if config else LocalEvents(catalogue) as events:
        app.state.events = events
        yield


app = FastAPI(lifespan=publishing)


@app.post("/orders", status_code=202)
async def pay(
    paid: OrderPaid,
    request: Request,
    event_id: UUID | None = None,
    x_user: Annotated[str, Header(max_length=100)] = "",
) -> dict[str, str]:
    """The view: what it answers is in the log. After a 503 the client asks again with ``?event_id=``."""
    events: Events = request.app.state.events
    given = str(event_id) if event_id else None
    return {"event_id": await events.publish(order_paid, paid, context={"userid": x_user}, event_id=given)}


@app.exception_handler(RequestValidationError)
async def not_valid(_: Request, error: RequestValidationError) -> JSONResponse:
    """FastAPI has found out that it does not fit, and would say 422."""
    faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return JSONResponse({"error": "; ".join(faults)}, status_code=400)


@app.exception_handler(BadEventError)
async def refused(_: Request, error: BadEventError) -> JSONResponse:
    """What FastAPI lets pass and no subscriber could take, such as a key of 600 bytes; nothing was published."""
    return JSONResponse({"error": str(error)}, status_code=400)


@app.exception_handler(NotPublishedError)
async def not_published(_: Request, error: NotPublishedError) -> JSONResponse:
    """Nobody knows whether the log has it: published again under the same id it is the same event."""
    return JSONResponse({"error": str(error), "event_id": error.event_id}, status_code=503)
