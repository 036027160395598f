"""A Django project in one file, whose server forks for each request after it has published, as with ``gunicorn --preload``.

Run as ``python -m tests.integration.events.django_site PORT DATABASE``; its views are the module ``shop_views``, which a test has
written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from socketserver import ForkingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

import shop_views  # type: ignore[import-not-found]  # the program of docs/reference/subscribers.md
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from streams_app import Events, Settings


class Forking(ForkingMixIn, WSGIServer):
    """A server that answers each request in a process of its own."""


class Rollback(Exception):
    """Raised to roll a transaction back."""


def with_process(answer: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Add the id of the answering process to the response, as a middleware."""

    def answered(request: HttpRequest) -> HttpResponse:
        response = answer(request)
        response["process"] = os.getpid()
        return response

    return answered


def rolled_back(request: HttpRequest) -> HttpResponse:
    with suppress(Rollback), transaction.atomic():
        answer = shop_views.pay(request)
        raise Rollback
    return answer


def away(request: HttpRequest) -> HttpResponse:
    """Make brokers unavailable in this process, which ends with the request."""
    nowhere: dict[str, Any] = {"app_id": "shop", "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "events": {"catalogue": "a:b"}}
    shop_views.events = Events(Settings.model_validate(nowhere), shop_views.catalogue, send_seconds=0.5)
    return shop_views.pay(request)


urlpatterns = [*shop_views.urlpatterns, path("rolled-back", rolled_back), path("away", away)]

if __name__ == "__main__":
    port, database = sys.argv[1:]
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
        MIDDLEWARE=["__main__.with_process"],
        ROOT_URLCONF="__main__",
        SECRET_KEY="of a test",
    )
    shop_views.events.publish_sync(shop_views.order_paid, shop_views.OrderPaid("o0", 1), event_id=f"by {os.getpid()}")
    make_server("127.0.0.1", int(port), get_wsgi_application(), server_class=Forking).serve_forever()
