"""Which web pages may use the gateway, and which host names it answers to.

A browser sends the origin of a page (RFC 6454); programs send none. Any name can be made to resolve to this machine,
and a page of that name then has the gateway's own origin (DNS rebinding). So a gateway that only this machine reaches,
and that needs no key, answers to the names of this machine alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

ANY = "*"
MAX_CACHED = 255  # characters of a host name; clients choose it, and could fill the memory


def is_local(name: str | None) -> bool:
    """Whether the host *name* always resolves to the machine that it is used on."""
    try:
        return name == "localhost" or (name is not None and ip_address(name).is_loopback)
    except ValueError:
        return False  # such as `127.example`, which can resolve to any host


class Origins:
    """The *allowed* origins beside the gateway's own; *private* means that only this machine reaches it."""

    def __init__(self, allowed: Iterable[str] = (), *, private: bool = False) -> None:
        self._allowed = frozenset(allowed)
        self._hosts = frozenset(origin.partition("://")[2] for origin in self._allowed)
        self._private = private

    @property
    def any(self) -> bool:
        """Whether every origin is allowed."""
        return ANY in self._allowed

    def refusal(self, origin: str | None, host: str | None, *, keyless: bool) -> str | None:
        """Why a request with these headers is refused, None if it is not; *keyless* means that no key is needed."""
        if self.any or origin in self._allowed:
            return None
        if self._private and keyless and host is not None and host not in self._hosts and not _is_ours(host):
            return f"the host {host!r} is not a name of this machine; the setting is auth.origins"
        if origin is None or origin.partition("://")[2] == host or _is_ours(origin.partition("://")[2]):
            return None
        return f"pages of {origin} are not allowed here; the setting is auth.origins"


def _is_ours(host: str) -> bool:
    """Whether *host*, which may have a port, always names the machine that it is used on."""
    return _known_host(host) if len(host) <= MAX_CACHED else is_local(_name(host))


@lru_cache(maxsize=256)  # each request names its host, and reading that takes as long as publishing a message
def _known_host(host: str) -> bool:
    return is_local(_name(host))


def _name(host: str) -> str | None:
    """The name in *host*, which may have a port; None if it is not valid."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
