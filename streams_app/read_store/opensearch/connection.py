"""Requests to OpenSearch, over connections that are opened on demand; among them the ``_bulk`` requests of a batch.

Every error of the server becomes a :class:`~streams_app.errors.TryAgainError` that names the server, without credentials. If the
server rejects the credentials or denies a right, the error is an :class:`~streams_app.read_store.core.errors.AccessDeniedError`
with a remedy.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from opensearchpy import AsyncOpenSearch
from opensearchpy.exceptions import (
    AuthenticationException,
    AuthorizationException,
    ConnectionTimeout,
    OpenSearchException,
    SSLError,
    TransportError,
)
from opensearchpy.exceptions import ConnectionError as NoConnectionError

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.errors import AccessDeniedError, TooSlowError
from streams_app.read_store.opensearch.documents import DocumentRequest
from streams_app.settings import ReadStoreSettings, UrlParts, has_late_at, redacted
from streams_app.tls import trusting

SCHEME: Final = re.compile(r"(?:opensearch|elasticsearch)\+(https?)")
PORT: Final = 9200
LONG_SECONDS: Final = 3600.0
MAX_BYTES: Final = 5_000_000
"""Maximum size of a request, in bytes. Servers accept 100 MB by default, hosted servers sometimes only 10 MB. A larger item is sent
in a request of its own."""

NEVER: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""HTTP statuses of a document that can never be stored. Any other error, such as a full queue or a missing shard, is temporary."""

_WANTED: Final = "items.*.status,items.*.error,items.*.get._source"
VALUE: Final = re.compile(r"\. Preview of field's value: .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that the server returned for a request, or for one document of a request.

    Attributes:
        kind: Type of the error, as OpenSearch names it; empty if the server did not name one.
        text: Text of the error, without any part of the document.
    """

    status: int
    kind: str
    text: str

    @classmethod
    def of(cls, status: int, error: Any) -> Fault:
        """Parse the JSON of an error. The text contains the reasons of all nested causes, because the last is the most specific."""
        kind, reasons = "", []
        while isinstance(error, dict):
            kind = kind or str(error.get("type", ""))
            if error.get("reason"):
                reasons.append(VALUE.sub("", str(error["reason"])))
            error = error.get("caused_by")
        return cls(status, kind, ": ".join(dict.fromkeys(reasons)) or str(error or f"status {status}"))


class FaultError(TryAgainError):
    """The server answered with an error."""

    def __init__(self, what: str, fault: Fault, advice: str = "") -> None:
        super().__init__("; ".join(filter(None, (f"{what}: {fault.text}", advice))))
        self.fault = fault


class AccessFaultError(FaultError, AccessDeniedError):
    """The server rejected the credentials, or denied the user a right."""


class OpenSearchClient:
    """Sends requests to one server, or to a load balancer in front of several servers."""

    def __init__(self, settings: ReadStoreSettings) -> None:
        try:
            parts = UrlParts.of(settings.url)
        except ValueError:
            parts = UrlParts("", None, None, (("", None),), "")
        scheme, (host, port) = SCHEME.fullmatch(parts.scheme), parts.hosts[0]
        is_single = bool(host) and len(parts.hosts) == 1
        if scheme is None or not is_single or parts.query or parts.fragment or has_late_at(settings.url):
            # The message omits the URL, because a part of the password may be in the position of the port.
            raise ConfigurationError(
                [
                    f"{settings.section}.url: expected opensearch+https://USER@HOST:PORT (opensearch+http:// without TLS); "
                    "/ # ? @ in a password are written as %2F %23 %3F %40"
                ]
            )
        self._settings = settings
        self._host = {"host": host, "port": port or PORT, "url_prefix": parts.path.strip("/")}
        self._has_tls = scheme[1] == "https"
        self._user, self._password = parts.username, parts.password
        self._client: AsyncOpenSearch | None = None
        self.what = f"read store {settings.name} {redacted(settings.url)}"
        """Name of the store and its URL, without credentials, for messages."""

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        given: Mapping[str, str | int] | None = None,
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request and return the answer, which is a JSON object.

        Args:
            path: The path of the URL, percent-encoded.
            body: JSON as bytes, or an object that becomes JSON.
            given: Parameters of the URL.
            seconds: Time limit; None means the ``timeout`` of the settings.

        Raises:
            FaultError: The server answered with an error. The error is an AccessFaultError if the server rejects the credentials or
                denies a right.
            TooSlowError: The time limit was exceeded; the outcome is unknown.
            TryAgainError: The server is unavailable, or its answer is not JSON; the outcome is unknown.
            ConfigurationError: A password file or CA file cannot be read.
        """
        if self._client is None:
            self._client = self._opened()
        parameters = {**(given or {}), "request_timeout": seconds or self._settings.timeout_ms / 1000}
        try:
            answer = await self._client.transport.perform_request(method, path, params=parameters, body=body)
        except NoConnectionError as error:
            fault = TooSlowError if isinstance(error, ConnectionTimeout) else TryAgainError
            raise fault(f"{self.what}: {_text(error)}") from error
        except TransportError as error:
            if isinstance(error, (AuthenticationException, AuthorizationException)):
                await self.close()  # the next request reads the password again, because it may have changed
            raise self.fault_error(_fault(error)) from error
        except OpenSearchException as error:
            raise TryAgainError(f"{self.what}: its answer is not JSON") from error
        return answer if isinstance(answer, dict) else {}

    def fault_error(self, fault: Fault) -> FaultError:
        """Return the exception for an error of a request or of one document; it names a remedy for wrong credentials or rights."""
        section = self._settings.section
        # The status of a blocked index is also 403, but of another kind; no right is missing then.
        if fault.status == HTTPStatus.FORBIDDEN and fault.kind in ("", "security_exception"):
            advice = f"grant it to the user in {section}.url"
        elif fault.status == HTTPStatus.UNAUTHORIZED:
            advice = f"check the user in {section}.url and the password in {section}.password_file"
        else:
            return FaultError(self.what, fault)
        return AccessFaultError(self.what, fault, advice)

    async def found(self, path: str) -> dict[str, Any] | None:
        """Send a GET request and return the answer; None if the server responds with status 404."""
        try:
            return await self.ask("GET", path)
        except FaultError as error:
            if error.fault.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def close(self) -> None:
        """Close all connections immediately. A later call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _opened(self) -> AsyncOpenSearch:
        settings, given = self._settings, dict[str, Any]()
        password = settings.password if settings.password_file is not None else self._password
        if self._user is not None:
            given["http_auth"] = (self._user, password or "")
        if self._has_tls:
            cafile = settings.ssl_cafile
            given["ssl_context"] = trusting(cafile, f"{settings.section}.ssl_cafile") if cafile else ssl.create_default_context()
        # No retries here: the callers retry, because they know the delay and the outage to report.
        return AsyncOpenSearch(hosts=[self._host], use_ssl=self._has_tls, max_retries=0, **given)


def _fault(error: TransportError) -> Fault:
    info, status = error.info, int(error.status_code)
    if isinstance(info, dict) and isinstance(info.get("error"), dict):
        return Fault.of(status, info["error"])
    return Fault(status, "", HTTPStatus(status).phrase if status in list(HTTPStatus) else f"status {status}")


def _text(error: NoConnectionError) -> str:
    if isinstance(error, ConnectionTimeout):
        return "no answer in time"
    if isinstance(error, SSLError):
        return f"no TLS: {error.error}"
    return str(error.error or error)


@dataclass(slots=True)
class BulkOutcome:
    """The outcome of each item of a batch.

    Attributes:
        taken: Accepted items, each with the number of its cells that were written, that were stale, and that were unchanged.
        rejected: Items with an error of :data:`NEVER`: the document can never be stored, or the store is misconfigured.
        delayed: Items with a temporary error.
    """

    taken: list[tuple[DocumentRequest, Sequence[int]]] = field(default_factory=list)
    rejected: list[tuple[DocumentRequest, Fault]] = field(default_factory=list)
    delayed: list[tuple[DocumentRequest, Fault]] = field(default_factory=list)

    def add(self, item: DocumentRequest, result: Any) -> None:
        """Add an item to :attr:`taken`, :attr:`rejected` or :attr:`delayed`, according to the answer of the server for it."""
        if "error" not in result:
            # The answer has no counts if the document does not exist and was not created.
            self.taken.append((item, result.get("get", {}).get("_source", {}).get("counts", (0, 0, 0))))
            return
        fault = Fault.of(result["status"], result["error"])
        (self.rejected if fault.status in NEVER else self.delayed).append((item, fault))


async def write_bulk(client: OpenSearchClient, alias: str, items: Sequence[DocumentRequest]) -> BulkOutcome:
    """Send a batch in one or several requests, and return the outcome of each item.

    A request that the server rejects because of its size is sent again in two halves.

    Raises:
        FaultError: The server rejected a request as a whole; earlier requests of the batch were executed.
        TryAgainError: A request was not answered. Its outcome is unknown; earlier requests of the batch were executed.
    """
    outcome = BulkOutcome()
    for part in parts(items):
        await _write_part(client, alias, part, outcome)
    return outcome


async def _write_part(client: OpenSearchClient, alias: str, items: Sequence[DocumentRequest], outcome: BulkOutcome) -> None:
    body = b"".join(item.body for item in items)
    try:
        # Without "require_alias", the first document would create an index of that name if `init` did not run.
        reply = await client.ask("POST", f"/{alias}/_bulk", body, {"require_alias": "true", "filter_path": _WANTED})
    except FaultError as error:
        if error.fault.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise
        if len(items) == 1:
            outcome.rejected.append((items[0], error.fault))
            return
        middle = len(items) // 2
        await _write_part(client, alias, items[:middle], outcome)
        await _write_part(client, alias, items[middle:], outcome)
        return
    for item, result in zip(items, reply["items"], strict=True):
        outcome.add(item, result["update"])


def parts(items: Sequence[DocumentRequest], max_bytes: int = MAX_BYTES) -> Iterator[list[DocumentRequest]]:
    """Split the items of a batch into the contents of ``_bulk`` requests, in order (pure).

    Each part has at least one item and at most ``max_bytes`` bytes; a larger item becomes a part of its own.
    """
    part: list[DocumentRequest] = []
    size = 0
    for item in items:
        if part and size + len(item.body) > max_bytes:
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.body)
    if part:
        yield part
