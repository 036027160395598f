"""``[console]``: the web page on which operators see an application."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from pydantic import ValidationInfo, field_validator, model_validator

from streams_app.settings.base import LAST_PORT, Section
from streams_app.settings.secret_files import read_secret

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
"""Names under which a browser on this machine requests the console, as in the header ``Host``."""

_LISTEN: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+):(?P<port>\d{1,5})", re.ASCII)
_WORKER: Final = re.compile(r"(https?://)?(\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(:\d{1,5})?/?", re.ASCII)
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)
_PUBLIC: Final = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(:\d{1,5})?/?", re.ASCII)


class ConsoleSettings(Section):
    """``[console]``: where ``streams-app console`` listens, and what it shows."""

    listen: str = "127.0.0.1:8091"
    """``HOST:PORT`` on which the console is served; port 0: any free port. An address that other machines reach requires
    ``token_file``."""
    workers: tuple[str, ...] = ()
    """Addresses of workers, ``HOST:PORT``. A DNS name that stands for several addresses, such as a headless service of Kubernetes,
    stands for several workers. If there are none, the worker of ``http`` on this machine."""
    hubs: tuple[str, ...] = ()
    """Addresses of live view servers, ``HOST:PORT`` of their ``http``, which their logs have. Of several on one machine, each has
    its own; a DNS name may stand for several, as in ``workers``."""
    token_file: Path | None = None
    """File with a token: browsers ask for it once, and programs send it as ``Authorization: Bearer``. Without it, the console
    listens on loopback only."""
    hide_values: bool = False
    """Whether group keys are shown as hashes, and changed names and payloads not at all."""
    allow_actions: bool = False
    """Whether the console has actions: it can flush and drop groups, replay dead letters, reset subscribers and repair read
    stores. Without it, the console changes nothing."""
    user_header: str = ""
    """Header in which a proxy names the user, such as `X-Forwarded-User`, for the audit line of an action. The proxy must set it in
    each request, because otherwise browsers can. Without it, the audit line has the address of the client."""
    public_url: str = ""
    """Address under which browsers reach the console, such as ``https://console.example.com``: the page ``/`` of a worker links to
    it, and only requests for it or for the address in ``listen`` are answered."""

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str) -> str:
        found = _LISTEN.fullmatch(listen)
        if found is None or int(found["port"]) > LAST_PORT:
            raise ValueError(f"{listen[:80]!r} is not HOST:PORT, as in 127.0.0.1:8091 or [::1]:8091")
        return listen

    @field_validator("workers", "hubs")
    @classmethod
    def _check_addresses(cls, addresses: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        what = "a worker" if info.field_name == "workers" else "a live view server"
        wrong = [address for address in addresses if not _WORKER.fullmatch(address)]
        if wrong:
            raise ValueError(f"{wrong[0][:80]!r} is not the address of {what}, as in 10.1.2.3:8080 or http://worker:8080")
        return addresses

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str) -> str:
        if url and not _PUBLIC.fullmatch(url):
            raise ValueError(f"{url[:80]!r} is not a URL without a path, in lower case, as in https://console.example.com")
        return url.rstrip("/")

    @field_validator("user_header")
    @classmethod
    def _check_user_header(cls, name: str) -> str:
        if name and not _HEADER.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not the name of a header (letters, digits and -), as in X-Forwarded-User")
        return name

    @model_validator(mode="after")
    def _check(self) -> ConsoleSettings:
        if self.token_file is None and not self.is_on_loopback:
            raise ValueError(
                f"listen = {self.listen!r} can be reached from other machines: name a file with a token as console.token_file "
                "(openssl rand -hex 32), or listen on 127.0.0.1"
            )
        return self

    @property
    def host(self) -> str:
        """Host of ``listen``, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def is_on_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names in ``Host`` for which the console answers without a token, so that no web site can read it by a name of its own.

        With a token, no list is needed: a browser sends the cookie of the token to the console's own name only.
        """
        if self.token_file is not None:
            return ()
        public = _PUBLIC.fullmatch(self.public_url)
        return (*LOOPBACK_NAMES, self.listen.rpartition(":")[0].lower(), *([public["host"]] if public else []))

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the console by HTTPS, so that its cookie may be restricted to it."""
        return self.public_url.startswith("https://")

    @property
    def token(self) -> str | None:
        """Token, read from ``token_file`` at each use; None if no file is set."""
        return read_secret("console.token_file", self.token_file)
