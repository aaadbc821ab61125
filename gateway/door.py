"""The door: whether a connection may come in, decided the same way for every listener and protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from . import machine
from .adapter import Adapter, Refusal, Request
from .auth import KEY, Access, bearer, identity_of
from .bus import Bus
from .limits import Limits
from .metrics import Metrics
from .networks import network
from .session import Session


class Door:
    """Checks origin, key and number of connections, then asks the adapter."""

    def __init__(self, access: Access, limits: Limits, bus: Bus, metrics: Metrics) -> None:
        self._access = access
        self.limits = limits
        self._bus = bus
        self._metrics = metrics
        self._callers: Counter[str] = Counter()  # HTTP connections that are no session, by address
        self._calling = 0
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
        if (reason := self._access.unwelcome(headers.get("origin"), headers.get("host"))) is not None:
            return self._refuse(adapter, 403, reason)
        token = bearer(headers.get("authorization")) or query.get("key")
        principal = self._access.authenticate(adapter.name, token, address)
        if principal is None:
            return self._refuse(adapter, 401, "no such key")
        if (reason := self.full(address)) is not None:
            return self._refuse(adapter, 503, reason)
        session = adapter.accept(Request(principal, path, query, headers, secure))
        if isinstance(session, Session):
            self._metrics.count("connections", adapter.name)
            if token is not None:
                name = principal.name.removeprefix(KEY)
                self._bus.bind(session, self._bus.peers.identity("rest", identity_of(name), name))
        return session

    def enter(self, address: str) -> str | None:
        """Let an HTTP connection in from *address*, until it leaves; or say why not."""
        address = network(address)
        if (reason := self._beyond(self._calling, self._callers[address])) is None:
            self._callers[address] += 1
            self._calling += 1
        return reason

    def leave(self, address: str) -> None:
        """An HTTP connection that was let in is over, or becomes a session."""
        address = network(address)
        self._calling -= 1
        self._callers[address] -= 1
        if not self._callers[address]:
            del self._callers[address]

    def full(self, address: str) -> str | None:
        """Why there is no room for another session from *address*; None where there is."""
        return self._beyond(self._bus.population, self._bus.population_of(network(address)))

    def _beyond(self, all: int, here: int) -> str | None:
        if self._bus.population + self._calling >= self._room:
            return "too many connections for the file descriptors that there are; raise their limit (ulimit -n)"
        if all >= self.limits.connections:
            return "too many connections; the setting is limits.connections"
        if here >= self.limits.connections_per_address:
            return "too many from here; the setting is limits.connections_per_address"
        return None

    def _refuse(self, adapter: Adapter, status: int, text: str) -> Refusal:
        self._metrics.count("refused", adapter.name, str(status))
        return Refusal(status, text)
