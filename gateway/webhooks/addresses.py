"""Decides which addresses webhooks may reach, so that nobody uses the gateway to reach what only it can reach (SSRF).

Laws of this file. A name is resolved once for each connection, and the connection goes to an address that was checked:
a name that resolves to something else a moment later (DNS rebinding) gains nothing. Every address that is not public is
refused, unless the operator lists its network in `webhooks.allow_networks`. Plain HTTP goes to such networks only.
docs/decisions/0051-webhooks.md has the reasons.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from time import monotonic
from typing import Any, Final

import anyio
import anyio.to_thread
import httpcore

from gateway.core.buckets import TokenBuckets

NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
REFUSED = "its address is not public; the operator may list the network in webhooks.allow_networks"
PLAIN_REFUSED = "plain HTTP is only sent to webhooks.allow_networks; use https"
MAX_LOOKUPS = 16  # names that one network backend resolves at once; further ones wait
MAX_READ = 512  # bytes of an answer that are parsed at once: 85 chunks of one byte, which take 5 ms
MAX_ANSWER = 1 << 16  # bytes of an answer, with its head
MAX_LINES = 512  # in an answer; a head of so many, which is parsed at once, takes 3 ms
FREE_LINES = 64  # in an answer, which are not charged
LINE_SECONDS = 11e-6  # of the loop that it takes to parse a line
LINE_SHARE, LINE_BURST = 0.05, 0.1  # of the loop's time, and seconds of it at once, for the lines of all answers

IpNetwork = IPv4Network | IPv6Network


class AddressRefused(Exception):
    """A receiver has no address that webhooks may reach; the text says why, without the address."""


def unwrap(address: str) -> IPv4Address | IPv6Address:
    """Return the address that packets to *address* reach: the embedded IPv4 address if it has one."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv4Address):
        return ip
    within = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    if within is None and ip in NAT64:
        within = IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip if within is None else within


def is_public(address: str) -> bool:
    """Whether *address* belongs to the public internet."""
    ip = unwrap(address)
    special = ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback or ip.is_link_local
    return ip.is_global and not special and not (isinstance(ip, IPv6Address) and ip.is_site_local)


class AnswerTooLong(Exception):
    """A receiver has sent more than `MAX_ANSWER` bytes or `MAX_LINES` lines."""


class AddressPolicy:
    """Which addresses may be reached: those in *allowed*, and with *public* all public ones."""

    def __init__(self, allowed: Iterable[IpNetwork], *, public: bool) -> None:
        self._allowed = tuple(allowed)
        self._public = public

    @property
    def reason(self) -> str:
        """Why an address is refused."""
        return REFUSED if self._public else PLAIN_REFUSED

    def permits(self, address: str) -> bool:
        """Whether *address* may be reached."""
        ip = unwrap(address)
        return any(ip in network for network in self._allowed) or (self._public and is_public(address))


class _PatientStream(httpcore.AsyncNetworkStream):
    """A connection that is read a little at a time, so that an answer of many short parts does not hold the loop.

    An answer is limited. Its lines (headers, chunks, informational answers) beyond `FREE_LINES` are charged to
    *line_time*, and the next read waits until the debt is paid.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream, line_time: TokenBuckets) -> None:
        self._stream = stream
        self._line_time = line_time
        self._size = self._lines = 0  # of the answer to what was written last

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read at most `MAX_READ` bytes; raise `AnswerTooLong` beyond the limits."""
        data = await self._stream.read(min(max_bytes, MAX_READ), timeout)
        known = max(self._lines, FREE_LINES)
        self._size += len(data)
        self._lines += data.count(b"\n")
        if self._size > MAX_ANSWER or self._lines > MAX_LINES:
            raise AnswerTooLong
        if self._lines > known and (wait := self._line_time.spend("", (self._lines - known) * LINE_SECONDS)):
            await anyio.sleep(wait)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all of *buffer*."""
        self._size = self._lines = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Return the connection with TLS; close it if the handshake is cancelled, as by a receiver that is too slow."""
        try:
            secured = await self._stream.start_tls(ssl_context, server_hostname, timeout)
            return _PatientStream(secured, self._line_time)
        except anyio.get_cancelled_exc_class():
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        """Return what the connection below knows."""
        return self._stream.get_extra_info(info)


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Opens TCP connections to addresses that a policy permits."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._backend = httpcore.AnyIOBackend()
        self._line_time = TokenBuckets(LINE_SHARE, LINE_BURST, monotonic)
        self._lookups = anyio.CapacityLimiter(MAX_LOOKUPS)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first permitted address of *host* that answers; raise `AddressRefused` if there is none."""
        found = await self._resolve(host, port)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        permitted = [address for address in addresses if self._policy.permits(address)]
        if not permitted:
            raise AddressRefused(self._policy.reason)
        stream = await self._connect_to_first(permitted, port, timeout, local_address, socket_options)
        return _PatientStream(stream, self._line_time)

    async def _resolve(self, host: str, port: int) -> list[Any]:
        """Resolve *host* in one of `MAX_LOOKUPS` threads, so that slow name servers do not block the event loop."""
        call = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._lookups)

    async def _connect_to_first(
        self, addresses: Sequence[str], port: int, timeout: float | None, local: str | None, options: Any
    ) -> httpcore.AsyncNetworkStream:
        *others, last = addresses
        for address in others:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local, options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(last, port, timeout, local, options)
