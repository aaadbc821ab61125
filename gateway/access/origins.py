"""Which web pages may talk to the gateway, and which names it goes by.

A page has an origin (RFC 6454) that its browser tells; programs have none. Any name can be made to lead to this
machine, and a page of that name has the gateway's own origin then (DNS rebinding): a gateway that only this machine
reaches and that asks nobody for a key goes by the names of this machine alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

ANY = "*"


def is_local(name: str | None) -> bool:
    """Whether *name*, of a host, always leads to the machine that it is used on."""
    try:
        return name == "localhost" or (name is not None and ip_address(name).is_loopback)
    except ValueError:
        return False  # `127.example` is a name like any other


class Origins:
    """The origins that are *allowed* beside the gateway's own; *private* says that only this machine reaches it."""

    def __init__(self, allowed: Iterable[str] = (), *, private: bool = False) -> None:
        self._allowed = frozenset(allowed)
        self._hosts = frozenset(origin.partition("://")[2] for origin in self._allowed)
        self._private = private

    def refusal(self, origin: str | None, host: str | None, *, keyless: bool) -> str | None:
        """Why a request with these headers may not come in, None if it may; *keyless* is a gateway without keys."""
        if ANY in self._allowed or origin in self._allowed:
            return None
        if self._private and keyless and host is not None and host not in self._hosts and not is_local(_name(host)):
            return f"this gateway goes by the names of this machine, and not by {host!r}; the setting is auth.origins"
        if origin is None or origin.partition("://")[2] == host or is_local(_name(origin.partition("://")[2])):
            return None
        return f"pages of {origin} are not allowed here; the setting is auth.origins"


def _name(host: str) -> str | None:
    """The name in *host*, which may have a port behind it; None where it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
