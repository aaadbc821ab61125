"""The door: whether a connection may come in, decided the same way for every listener and protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import Protocol

from gateway.access.auth import KEY_PREFIX, Access, bearer_token, key_identity
from gateway.access.limits import Limits
from gateway.core.bus import Bus
from gateway.core.message import REST
from gateway.core.networks import network
from gateway.core.session import Session

from . import machine
from .adapter import Adapter, Refusal, Request
from .metrics import Metrics

DESCRIPTORS = "too many connections for the file descriptors that there are; raise their limit (ulimit -n)"
HERE = "too many from here; the setting is limits.connections_per_address"


SPARED = 1 / 16  # of `limits.keep_alive_seconds`: who was idle for less asks again and again, and gives no way
MAX_PARTING = 64  # connections that were not let in and are told why; their descriptors are the gateway's own


class Idle(Protocol):
    """A connection that is kept for a next request, and can go."""

    @property
    def network(self) -> str:
        """Where the client is."""

    def close_idle(self) -> None:
        """Leave, and end."""


class Door:
    """Checks origin, key and number of connections, then asks the adapter."""

    def __init__(self, access: Access, limits: Limits, bus: Bus, metrics: Metrics) -> None:
        self._access = access
        self.limits = limits
        self._bus = bus
        self._metrics = metrics
        self._callers: Counter[str] = Counter()  # HTTP connections that are no session, by address
        self._calling = 0
        self._parting = 0
        self._idle: dict[str, dict[Idle, float]] = {}  # those of them that nothing is asked on since then, by address
        self._room = machine.connections()

    def admit(
        self,
        adapter: Adapter,
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
            return self._refuse(adapter, 403, reason)
        token = bearer_token(headers.get("authorization")) or query.get("key")
        principal = self._access.authenticate(adapter.name, token, address)
        if principal is None:
            return self._refuse(adapter, 401, "no such key")
        if (reason := self.full(address)) is not None:
            return self._refuse(adapter, 503, reason)
        session = adapter.accept(Request(principal, path, query, headers, secure))
        if isinstance(session, Session):
            self._metrics.count("connections", adapter.name)
            if token is not None:
                name = principal.name.removeprefix(KEY_PREFIX)
                self._bus.bind(session, self._bus.peers.identity(REST, key_identity(name), name))
        return session

    def enter(self, address: str) -> str | None:
        """Let an HTTP connection in from *address*, until it leaves; or say why not."""
        address = network(address)
        while (reason := self._beyond(self._calling, self._callers[address])) is not None:
            if not self._make_room(address if reason is HERE else None):
                return reason
        self._callers[address] += 1
        self._calling += 1
        return None

    def leave(self, address: str) -> None:
        """An HTTP connection that was let in is over, or becomes a session."""
        address = network(address)
        self._calling -= 1
        self._callers[address] -= 1
        if not self._callers[address]:
            del self._callers[address]

    def idle(self, connection: Idle) -> None:
        """Nothing is asked on *connection*, which was let in, for the moment: it may have to give way."""
        self._idle.setdefault(connection.network, {})[connection] = monotonic()

    def busy(self, connection: Idle) -> None:
        """Something is asked on *connection* again, or it leaves."""
        if (there := self._idle.get(connection.network)) is not None:
            there.pop(connection, None)
            if not there:
                del self._idle[connection.network]

    def parts(self) -> bool:
        """Whether a connection that was not let in may stay until it has read why, for a moment; see `parted`."""
        if may := self._parting < MAX_PARTING:
            self._parting += 1
        return may

    def parted(self) -> None:
        """One of those has gone."""
        self._parting -= 1

    def full(self, address: str) -> str | None:
        """Why there is no room for another session from *address*; None where there is."""
        while (
            reason := self._beyond(self._bus.session_count, self._bus.session_count_from(network(address)))
        ) is DESCRIPTORS:
            if not self._make_room(None):
                break
        return reason

    def _make_room(self, address: str | None) -> bool:
        """Let the connection go that is idle for longest, at *address* or anywhere; whether any is idle for long."""
        places = list(self._idle.values()) if address is None else [self._idle.get(address, {})]
        oldest = min((next(iter(place.items())) for place in places if place), key=lambda each: each[1], default=None)
        if oldest is None or monotonic() - oldest[1] < self.limits.keep_alive_seconds * SPARED:
            return False
        oldest[0].close_idle()
        return True

    def _beyond(self, all: int, here: int) -> str | None:
        if self._bus.session_count + self._calling >= self._room:
            return DESCRIPTORS
        if all >= self.limits.connections:
            return "too many connections; the setting is limits.connections"
        if here >= self.limits.connections_per_address:
            return HERE
        return None

    def _refuse(self, adapter: Adapter, status: int, text: str) -> Refusal:
        self._metrics.count("refused", adapter.name, str(status))
        return Refusal(status, text)
