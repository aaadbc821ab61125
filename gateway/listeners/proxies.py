"""Reverse proxies in front of the gateway, which report where a request comes from.

A request that comes from one of `trusted_proxies` is taken to come from the last address in `X-Forwarded-For` that is
not itself a trusted proxy, and by the scheme in `X-Forwarded-Proto`. From anybody else these headers are ignored, since
any client can send them. What stands before that address, or before something that is not an address, is ignored as
well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

FORWARDED_FOR, FORWARDED_PROTO = b"x-forwarded-for", b"x-forwarded-proto"
MAX_HOPS = 16  # proxies, one behind the other
MAX_ADDRESS = 64  # characters, with brackets, a zone and a port
SCHEMES = {
    "http": {"http": "http", "https": "https"},
    "websocket": {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"},
}


class TrustedProxies:
    """The networks (`10.0.0.0/8`) and addresses (`127.0.0.1`) of the proxies; raises `ValueError` for anything else."""

    def __init__(self, proxies: Iterable[str]) -> None:
        self._networks: tuple[IPv4Network | IPv6Network, ...] = tuple(map(ip_network, proxies))
        self.trusts: Callable[[str], bool] = lru_cache(maxsize=1024)(self._trusts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _trusts(self, address: str) -> bool:
        """Whether *address* is that of a proxy."""
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if found.version == 6 and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def connection(self, address: str, number: int) -> str:
        """The address that the connection with that *number* counts for; each connection of a proxy has its own.

        Many people share a proxy; they are limited by the addresses that it reports.
        """
        return f"proxy connection {number}" if self.trusts(address) else address

    def origin(self, address: str, forwarded: str) -> str:
        """Where a request from *address* comes from, with *forwarded* as its `X-Forwarded-For`."""
        hops = forwarded.rsplit(",", MAX_HOPS)[-MAX_HOPS:]
        while self.trusts(address) and hops and (hop := _address(hops.pop())):
            address = hop
        return address

    def with_forwarded(self, scope: Scope) -> Scope:
        """Return *scope* with the client address and the scheme that a trusted proxy reports, if it came from one."""
        client = scope.get("client")
        if not self._networks or scope["type"] not in SCHEMES or not client or not self.trusts(client[0]):
            return scope
        headers = scope["headers"]
        forwarded = ",".join(value.decode("latin-1") for name, value in headers if name == FORWARDED_FOR)
        reported = next((value.decode("latin-1").strip() for name, value in headers if name == FORWARDED_PROTO), "")
        scheme = SCHEMES[scope["type"]].get(reported, scope.get("scheme"))
        return {**scope, "client": (self.origin(client[0], forwarded), client[1]), "scheme": scheme}


class ForwardedHeaders:
    """ASGI middleware: replaces the client and the scheme of a request by those that a trusted proxy reports."""

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        await self._app(self._proxies.with_forwarded(scope), receive, send)


def _address(text: str) -> str:
    """The address in one part of `X-Forwarded-For`, which may have a port; empty if there is none."""
    if len(text := text.strip()) > MAX_ADDRESS:
        return ""
    for candidate in (text, text.rpartition(":")[0].strip("[]"), text.strip("[]")):
        try:
            return str(ip_address(candidate))
        except ValueError:
            continue
    return ""
