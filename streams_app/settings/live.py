"""``[live.NAME]`` and ``[live_server]``: live views of topics, and the server that shows them to browsers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from streams_app.conditions import parsed_conditions
from streams_app.envelopes import BESIDE, UNAVAILABLE, Format, placeholder_faults
from streams_app.errors import ConfigurationError
from streams_app.fold import FOLD_NAME, TOPIC_NAME
from streams_app.formatting import Duration, milliseconds
from streams_app.settings.base import Section, UrlParts
from streams_app.settings.secret_files import read_secret

TYPE_HEADER: Final = "@type"
"""Name in ``only`` and ``remove`` for the header ``ce_type``; with ``format = "cloudevents"``, for the attribute ``type``."""

MAX_SHOWN: Final = 50
LIST_ITEMS: Final = 1_000
COUNT_ITEMS: Final = 100_000
SECRET_BYTES: Final = 32

MIN_EXPIRY: Final = timedelta(seconds=1)
MIN_EXPIRY_OF_PRESENCE: Final = timedelta(seconds=5)
"""Minimum ``expiry`` of ``presence``. Hubs refresh their open pages in Redis once a second. With a shorter expiry, pages of other
hubs would be missing at times."""

MAX_EXPIRY: Final = timedelta(days=30)

OF_TOPICS: Final = ("source", "format", "unavailable_value", "page", "item", "only", "remove", "dead_letters")
"""Settings that only views of topics have, not views of the kind ``presence``."""

ORIGIN: Final = re.compile(r"https?://[^/?#\s@,]+")

ALLOWED_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.ASCII)

PRIVATE_NETWORKS: Final = ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")

Scalar = str | int | float | bool


def _is_origin(text: str) -> bool:
    try:
        ((host, _),) = UrlParts.of(text).hosts
    except ValueError:
        return False
    return bool(host and ORIGIN.fullmatch(text)) and text == text.lower()


def _checked_conditions(given: Any) -> Any:
    conditions = parsed_conditions(given)
    if not all(isinstance(value, str) for value in conditions.get(TYPE_HEADER, ())):
        raise ValueError(f"{TYPE_HEADER} is a header, whose values must be strings")
    return conditions


Conditions = Annotated[dict[str, tuple[Any, ...]], BeforeValidator(_checked_conditions)]
"""Accepted values of each field or of ``@type``. An event matches if each of these fields has one of its accepted values."""


class LiveView(Section):
    """``[live.NAME]``: the current state of a topic, or the connected browsers, for each page."""

    name: str
    """Name of the view, for pages; label ``view`` of its metrics."""
    kind: Literal["count", "list", "presence"]
    """``count``: how many items; ``list``: the newest items; ``presence``: how many browsers have the page open."""
    source: str = ""
    """Topic of its events: a raw topic or the output of a fold; required unless ``presence``."""
    format: Format = "json"
    """``json``; ``debezium``: the row of a change event, with further fields ``@op``, ``@before`` and so on; ``cloudevents``: the
    ``data`` of a CloudEvent in structured mode, with its attributes as ``@type`` and so on; ``avro``, ``protobuf`` or
    ``json-schema``: values framed by a schema registry."""
    unavailable_value: str = UNAVAILABLE
    """With ``format = "debezium"``: the property ``unavailable.value.placeholder`` of the connector, if it was changed. Debezium
    sends it for a large value that an update did not change."""
    page: str = ""
    """Field or dotted path that names the page; 1 and ``"1"`` are one page; required unless ``presence``."""
    item: str = ""
    """Field or dotted path that names the item. If it is not set, the item is the fold id of a folded record; of other records, the
    position in the topic, so an event that is sent twice counts twice."""
    expiry: Duration
    """An item expires this long after its record timestamp, a browser this long after the last sign of life of its hub; 1s to 30d,
    for ``presence`` at least 5s."""
    only: Conditions = Field({})
    """Field → value or list of values: only matching events are shown. ``@type`` is the header ``ce_type``; of CloudEvents in
    structured mode, their type."""
    remove: Conditions = Field({})
    """Field → value or list of values: a matching event removes its item."""
    payload: tuple[str, ...] = ()
    """For a ``list``: fields or dotted paths of an event that are shown; none: the whole event without its fields ``@…``; at
    most 1 kB per item."""
    show: Annotated[int, Field(ge=1)] = 10
    """For a ``list``: number of newest items that are sent; at most 50."""
    max_items: Annotated[int, Field(ge=0, le=COUNT_ITEMS)] = 0
    """Maximum number of items of a page, over all partitions; the newest are kept, and ``more`` is true if there are others. Each
    partition stores up to this number. 0: 1000 for a ``list``, 100000 for a ``count``."""
    people: bool = False
    """For ``presence``: also show who has the page open, by the ``sub`` of their tokens."""
    public: bool = False
    """Whether the view can be read without a token."""
    dead_letters: str = ""
    """Topic for events that cannot be shown."""

    if TYPE_CHECKING:
        # For type checkers: a field accepts more types than it holds after validation.
        def __init__(
            self,
            *,
            name: str,
            kind: Literal["count", "list", "presence"],
            expiry: str | timedelta,
            source: str = ...,
            format: Format = ...,
            unavailable_value: str = ...,
            page: str = ...,
            item: str = ...,
            only: Mapping[str, Scalar | Sequence[Scalar]] = ...,
            remove: Mapping[str, Scalar | Sequence[Scalar]] = ...,
            payload: Sequence[str] = ...,
            show: int = ...,
            max_items: int = ...,
            people: bool = ...,
            public: bool = ...,
            dead_letters: str = ...,
        ) -> None: ...

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not FOLD_NAME.fullmatch(name):
            raise ValueError("the name of a live view has a-z, 0-9, _ and -, and begins with a letter or digit; at most 63")
        return name

    @model_validator(mode="after")
    def _check(self) -> LiveView:
        faults = self._presence_faults() if self.kind == "presence" else self._topic_faults()
        if self.kind == "presence" and MIN_EXPIRY <= self.expiry < MIN_EXPIRY_OF_PRESENCE:
            faults.append('expiry of kind = "presence" must be at least 5s: hubs write once a second who is there')
        elif not MIN_EXPIRY <= self.expiry <= MAX_EXPIRY:
            faults.append("expiry must be between 1s and 30d")
        if self.kind != "list":
            faults += [f'{key} is for kind = "list"' for key in ("payload", "show") if key in self.model_fields_set]
        elif self.show > MAX_SHOWN:
            faults.append(f"show is at most {MAX_SHOWN}: a page that needs more requires a query of its own, not a live view")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _presence_faults(self) -> list[str]:
        given = [key for key in (*OF_TOPICS, "max_items") if key in self.model_fields_set and getattr(self, key)]
        faults = [f'kind = "presence" counts open pages and takes no {key}' for key in given]
        if self.people and self.public:
            faults.append("people = true shows who is there, by their tokens: such a view cannot be public")
        return faults

    def _topic_faults(self) -> list[str]:
        faults = [f'{key} is required for kind = "{self.kind}"' for key in ("source", "page") if not getattr(self, key)]
        for label, topic in (("source", self.source), ("dead_letters", self.dead_letters)):
            if topic and (not TOPIC_NAME.fullmatch(topic) or topic in (".", "..")):
                faults.append(f"{label} = {topic!r} is not a Kafka topic name (a-z A-Z 0-9 . _ -, at most 249)")
        for label, path in (("page", self.page), ("item", self.item), *(("payload", path) for path in self.payload)):
            if (path or label == "payload") and not all(path.split(".")):
                faults.append(f"{label} = {path!r} is not a field or a dotted path")
        if self.format == "json":
            beside = [field for field in (*self.only, *self.remove) if field.startswith(BESIDE) and field != TYPE_HEADER]
            faults += [f"{field!r} is neither {TYPE_HEADER} nor a field or dotted path of plain JSON" for field in beside]
        faults += placeholder_faults(self.format, self.unavailable_value)
        if self.people:
            faults.append('people is for kind = "presence"')
        return faults

    @property
    def expiry_ms(self) -> int:
        """Time after which an item, or a browser of ``presence``, expires, in ms."""
        return milliseconds(self.expiry)

    @property
    def is_of_topic(self) -> bool:
        """Whether a worker reads events for the view. Views of the kind ``presence`` need only hubs."""
        return self.kind != "presence"

    @property
    def keeps(self) -> int:
        """Maximum number of items of a page; the newest ones are kept."""
        return self.max_items or (LIST_ITEMS if self.kind == "list" else COUNT_ITEMS)

    @property
    def group(self) -> str:
        """Name of the consumer group without the prefix ``<app_id>.``."""
        return f"live.{self.name}"

    @property
    def section(self) -> str:
        """Name of the section in the file, for messages."""
        return f"live.{self.name}"


class LiveServer(Section):
    """``[live_server]``: the server that streams live views to browsers, and the web sites from which browsers may connect."""

    host: str = "127.0.0.1"
    """Address on which live views are served."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8090
    """0: any free port. A port that is in use is an error."""
    interval: Duration = timedelta(milliseconds=250)
    """How often Redis is polled for open pages, and the minimum time between two messages of one view to a page; 50ms to 10s."""
    beat: Duration = timedelta(seconds=15)
    """How often the server confirms to an open page that its connection is alive; 1s to 1m."""
    connections: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    """Maximum number of browser tabs that one server serves; more are rejected with 503."""
    origins: tuple[str, ...] = ()
    """Origins of pages from other hosts that may connect, exactly as a browser sends them: ``https://www.example.com``."""
    hosts: tuple[str, ...] = ()
    """Host names, without port, under which the server is requested: ``live.example.com``. Requests with another ``Host`` are
    rejected, so that no web site can read public views by pointing its own name to the server; none: any host."""
    proxies: tuple[str, ...] = PRIVATE_NETWORKS
    """Addresses and networks of proxies in front of the server. For a connection from one of them, the address of the client is
    the last one in ``X-Forwarded-For`` that is not one of them."""
    tabs_per_client: Annotated[int, Field(ge=0, le=100_000)] = 20
    """Maximum number of tabs that one address, or one ``sub`` of tokens, adds to the count of a page in a view with
    ``kind = "presence"``, for each server. Further tabs see the page, but are not counted. 0: no limit."""
    secret_file: Path | None = None
    """File with the secret that signs tokens, at least 32 bytes; further lines hold earlier secrets, which stay valid."""

    @field_validator("origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [origin for origin in origins if not _is_origin(origin)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not an origin: scheme and host in lower case, as in https://www.example.com")
        return origins

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [name for name in hosts if not ALLOWED_NAME.fullmatch(name)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not a host: a name or address in lower case, without port: live.example.com, [::1]")
        return hosts

    @field_validator("proxies")
    @classmethod
    def _check_proxies(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ValueError(f"{proxy!r} is not an address or a network, as in 10.1.2.3 or 10.0.0.0/8") from None
        return proxies

    @model_validator(mode="after")
    def _check(self) -> LiveServer:
        faults = []
        if not timedelta(milliseconds=50) <= self.interval <= timedelta(seconds=10):
            faults.append("interval must be between 50ms and 10s")
        if not timedelta(seconds=1) <= self.beat <= timedelta(minutes=1):
            faults.append("beat must be between 1s and 1m")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def interval_ms(self) -> int:
        """Interval at which the server polls Redis for changes of open pages, in ms."""
        return milliseconds(self.interval)

    @property
    def beat_ms(self) -> int:
        """Interval at which the server confirms to each connected browser that its connection is alive, in ms."""
        return milliseconds(self.beat)

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Networks of the proxies in front of the server."""
        return tuple(ip_network(proxy) for proxy in self.proxies)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, read from ``secret_file`` at each use: the first one signs tokens, and tokens signed with any are accepted.

        Empty if no file is set.

        Raises:
            ConfigurationError: The file cannot be read, or a secret is too short.
        """
        text = read_secret("live_server.secret_file", self.secret_file)
        found = tuple(line.strip() for line in (text or "").splitlines() if line.strip())
        if any(len(one.encode()) < SECRET_BYTES for one in found):
            raise ConfigurationError(
                [f"live_server.secret_file: a secret has at least {SECRET_BYTES} bytes (openssl rand -hex 32)"]
            )
        return found


def faults_of_views(views: Sequence[LiveView], server: LiveServer, taken: Collection[str]) -> list[str]:
    """Check the live views of an application together; return the faults, one sentence for each.

    A view cannot read the topics ``taken``, the dead-letter topics of other components.
    """
    names = [view.name for view in views]
    faults = ["two live views have the same name"] if len(set(names)) != len(names) else []
    if server.secret_file is None and (private := [view.section for view in views if not view.public]):
        faults.append(
            f"{', '.join(private)}: wants tokens, and live_server.secret_file is not set: name a file with a secret, "
            "or say public = true"
        )
    dead_letter_topics = {*taken, *(view.dead_letters for view in views if view.is_of_topic)}
    faults += [
        f"{view.section}.source is a dead-letter topic" for view in views if view.is_of_topic and view.source in dead_letter_topics
    ]
    return faults
