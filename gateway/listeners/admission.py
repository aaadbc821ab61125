"""Admission control: whether a connection is accepted, by the same rules for every listener and protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import Protocol

from gateway.access.authorization import KEY_PREFIX, Access, bearer_token, key_identity
from gateway.adapter import ConnectionRequest, Refusal
from gateway.core.bus import Bus
from gateway.core.message import REST
from gateway.core.networks import network
from gateway.core.session import Session
from gateway.monitoring.metrics import Metrics
from gateway.settings.limits import Limits
from gateway.system import machine

NO_DESCRIPTORS = "too many connections for the available file descriptors; raise their limit (ulimit -n)"
TOO_MANY_FROM_ADDRESS = "too many from here; the setting is limits.connections_per_address"

PROTECTED_SHARE = 1 / 16  # of `limits.keep_alive_seconds`: a connection that is idle for less is in use, and stays
MAX_REFUSED = 64  # connections that read a refusal at once; they take descriptors of the gateway's reserve


class IdleConnection(Protocol):
    """An HTTP connection that is kept alive for another request, and may be closed."""

    @property
    def network(self) -> str:
        """The client's network: see `gateway.core.networks`."""

    def close_idle(self) -> None:
        """Call `Admission.leave`, and close."""


class Acceptor(Protocol):
    """What makes the sessions of one kind of connections."""

    @property
    def name(self) -> str:
        """The protocol."""

    def accept(self, request: ConnectionRequest) -> Session | Refusal:
        """A session for this connection, or why it is refused."""


class Admission:
    """Checks origin, key and number of connections, then asks the adapter."""

    def __init__(self, access: Access, limits: Limits, bus: Bus, metrics: Metrics) -> None:
        self._access = access
        self.limits = limits
        self._bus = bus
        self._metrics = metrics
        self._http_by_address: Counter[str] = Counter()  # HTTP connections that are no session, by network
        self._http_connections = 0
        self._refused = 0
        self._idle: dict[str, dict[IdleConnection, float]] = {}  # since when they are idle, by network, oldest first
        self._room = machine.connections()

    def admit(
        self,
        adapter: Acceptor,
        address: str,
        path: str = "",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        secure: bool = False,
    ) -> Session | Refusal:
        """A session for a connection from *address*, or why not. Header names are in lower case."""
        query, headers = query or {}, headers or {}
        if (reason := self._access.origin_refusal(headers.get("origin"), headers.get("host"))) is not None:
            return self._refuse(adapter, address, 403, reason)
        token = bearer_token(headers.get("authorization")) or query.get("key")
        principal = self._access.authenticate(adapter.name, token, address)
        if principal is None:
            return self._refuse(adapter, address, 401, "no such key")
        if (reason := self.capacity_error(address)) is not None:
            return self._refuse(adapter, address, 503, reason)
        session = adapter.accept(ConnectionRequest(principal, path, query, headers, secure))
        if isinstance(session, Session):
            self._metrics.count("connections", adapter.name)
            if token is not None:
                name = principal.name.removeprefix(KEY_PREFIX)
                self._bus.bind(session, self._bus.peers.identity(REST, key_identity(name), name))
        return session

    @property
    def http_count(self) -> int:
        """The number of HTTP connections that are no session."""
        return self._http_connections

    def enter(self, address: str) -> str | None:
        """Count an HTTP connection from *address* until `leave`, or return why it is refused."""
        address = network(address)
        while (reason := self._limit_error(self._http_connections, self._http_by_address[address])) is not None:
            if not self._make_room(address if reason is TOO_MANY_FROM_ADDRESS else None):
                return reason
        self._http_by_address[address] += 1
        self._http_connections += 1
        return None

    def leave(self, address: str) -> None:
        """An HTTP connection that was counted has ended, or becomes a session."""
        address = network(address)
        self._http_connections -= 1
        self._http_by_address[address] -= 1
        if not self._http_by_address[address]:
            del self._http_by_address[address]

    def mark_idle(self, connection: IdleConnection) -> None:
        """*connection*, which was counted, has no request now: it may be closed to make room."""
        self._idle.setdefault(connection.network, {})[connection] = monotonic()

    def mark_busy(self, connection: IdleConnection) -> None:
        """*connection* has a request again, or ends."""
        if (there := self._idle.get(connection.network)) is not None:
            there.pop(connection, None)
            if not there:
                del self._idle[connection.network]

    def begin_refusal(self) -> bool:
        """Whether a refused connection may stay open until it has read why; `end_refusal` has to follow."""
        if may := self._refused < MAX_REFUSED:
            self._refused += 1
        return may

    def end_refusal(self) -> None:
        """A connection that `begin_refusal` allowed to stay has ended."""
        self._refused -= 1

    def capacity_error(self, address: str) -> str | None:
        """Why there is no room for another session from *address*; None if there is."""
        bus, here = self._bus, network(address)
        while (reason := self._limit_error(bus.session_count, bus.session_count_from(here))) is NO_DESCRIPTORS:
            if not self._make_room(None):
                break
        return reason

    def _make_room(self, address: str | None) -> bool:
        """Close the connection that has been idle longest, at *address* or anywhere; False if none may be closed."""
        places = list(self._idle.values()) if address is None else [self._idle.get(address, {})]
        oldest = min((next(iter(place.items())) for place in places if place), key=lambda each: each[1], default=None)
        if oldest is None or monotonic() - oldest[1] < self.limits.keep_alive_seconds * PROTECTED_SHARE:
            return False
        oldest[0].close_idle()
        return True

    def _limit_error(self, all: int, here: int) -> str | None:
        if self._bus.session_count + self._http_connections >= self._room:
            return NO_DESCRIPTORS
        if all >= self.limits.connections:
            return "too many connections; the setting is limits.connections"
        if here >= self.limits.connections_per_address:
            return TOO_MANY_FROM_ADDRESS
        return None

    def _refuse(self, adapter: Acceptor, address: str, status: int, text: str) -> Refusal:
        self._metrics.refused(adapter.name, str(status), network=network(address), why=text)
        return Refusal(status, text)
