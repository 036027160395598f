"""From whom a request comes, and for which host it is (pure).

It stands alone, because the rules of the headers ``Host`` and ``X-Forwarded-For`` are tested without a server.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

IPV6_PREFIX: Final = 64
"""Leading bits of an IPv6 address that identify a client: the network of one site, within which it can choose any address."""

MAX_FORWARDED: Final = 32
"""Maximum number of addresses of ``X-Forwarded-For`` that are read, from the last one on."""

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(:\d{0,5})?", re.IGNORECASE | re.ASCII)
_FORWARDED: Final = re.compile(r"\[(?P<ipv6>[^\]]+)\](:\d+)?|(?P<ipv4>[\d.]+):\d+", re.ASCII)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def is_allowed_authority(authority: str | None, hosts: Collection[str]) -> bool:
    """Return whether a request is for one of the allowed hosts.

    Args:
        authority: Header ``Host`` of the request, with or without a port; None if it has none.
        hosts: Names and addresses in lower case, without ports; if there are none, each host is allowed.
    """
    if not hosts:
        return True
    found = _AUTHORITY.fullmatch(authority or "")
    return found is not None and found[1].lower() in hosts


def client_of(peer: str | None, forwarded: Iterable[str], proxies: Sequence[Network]) -> str:
    """Return the client of a request: its IPv4 address, or the network of its IPv6 address; "" if the address is not known.

    If the connection comes from a proxy, the client is the last address in ``X-Forwarded-For`` that is not a proxy. The addresses
    before it are not read, because the client may have written them itself.

    Args:
        peer: Address of the other end of the connection; None if it is not known.
        forwarded: Values of the headers ``X-Forwarded-For``, in the order in which they were received.
    """
    client = _address(peer or "")
    if client is None:
        return ""
    for text in reversed(",".join(forwarded).split(",")[-MAX_FORWARDED:]):
        if not _is_proxy(client, proxies) or (before := _address(text.strip())) is None:
            break
        client = before
    return str(client if client.version == 4 else ip_network((client, IPV6_PREFIX), strict=False))  # noqa: PLR2004  # IPv4


def _address(text: str) -> Address | None:
    bare = _FORWARDED.fullmatch(text)
    try:
        address = ip_address((bare["ipv6"] or bare["ipv4"]) if bare else text.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _is_proxy(address: Address, proxies: Sequence[Network]) -> bool:
    return any(address in network for network in proxies)
