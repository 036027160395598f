"""Events and subscribers of a small shop, declared as in an application."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

import msgspec
from pydantic import BaseModel

from streams_app import Catalogue, Event, Received, Retries, Retry, records_of, subscriber

SETTINGS = """
app_id = "social"
[folds.account-metrics]
source = "post-metric-updated"
group_key = "account_id"
changed = "metrics"
quiet_period = "15m"
[events]
catalogue = "tests.helpers.events.shop:catalogue"
"""
"""A ``streams.toml`` of the shop; a test adds the sections that it needs."""


class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str
    cents: int


class PaidBy(msgspec.Struct, frozen=True):
    method: str


@dataclass(frozen=True)
class ParcelSent:
    order_id: str
    carrier: str = "post"


class StockCounted(TypedDict):
    article: int
    pieces: int


class AddressChanged(BaseModel):
    customer: str
    city: str


class AccountChanged(msgspec.Struct, frozen=True):
    account_id: str
    metrics: list[str]


class UnknownAccount(Exception):
    pass


class RateLimited(Exception):
    pass


order_paid = Event(
    "order.paid", OrderPaid, description="The money of an order has arrived.", keyed_by="order_id", metadata=PaidBy, topic="orders"
)
parcel_sent = Event("parcel.sent", ParcelSent, description="A parcel was handed over.", keyed_by="order_id")
stock_counted = Event("stock.counted", StockCounted, description="Somebody has counted.", keyed_by="article")
address_changed = Event("address.changed", AddressChanged, description="A customer has moved.", keyed_by=None)


@subscriber(order_paid, idempotent="no", description="Hands the parcel to the carrier.", concurrency=8, timeout="20s", rate="50/s")
async def ship(event: Received[OrderPaid, PaidBy]) -> None:
    if event.data.cents == 0:
        raise Retry(after="30s")
    await event.publish(parcel_sent, ParcelSent(event.data.order_id))


@subscriber(
    records_of("account-metrics", AccountChanged),
    idempotent="yes",
    ordered="key",
    description="Recomputes what an account shows.",
    retry=Retries(attempts=8, first="1s", factor=3, longest="5m", never=(UnknownAccount,), by={RateLimited: Retries(attempts=20)}),
)
def recompute(event: Received[AccountChanged]) -> None:
    if not event.data.metrics:
        raise UnknownAccount


@asynccontextmanager
async def resources():
    yield


catalogue = Catalogue(
    events=(order_paid, parcel_sent, stock_counted, address_changed), subscribers=(ship, recompute), lifespan=resources
)
