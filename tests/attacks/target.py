"""The gateway that is attacked, as attackers see it, and the report of an attack."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass, field

HOST = "127.0.0.1"

# The address of attackers. Rate limits apply to each address, so honest peers have another one unless this is theirs.
SOURCE = os.environ.get("ATTACKERS_ADDRESS", "127.0.0.66")

RELAY_HOST = "127.0.0.67"  # the address that the gateway dials


@dataclass(frozen=True)
class Target:
    """Ports of the gateway on `HOST`, 0 for one that it does not have. *keys* are its API keys by name.

    If the gateway has a link, *relay* is the socket that listens at the address that it dials.
    """

    http: int
    sprout: int
    sprout_tls: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    relay: socket.socket | None = None

    @property
    def host(self) -> str:
        """The Host header of a request."""
        return f"{HOST}:{self.http}"


@dataclass
class Report:
    """The result of an attack. `dropped` has the age in seconds of each connection that the gateway ended.

    `answers` counts what the gateway answered; `broken` names the promises that it did not keep.
    """

    connections: int = 0
    dropped: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    broken: list[str] = field(default_factory=list)

    def require(self, promise: str, kept: object) -> None:
        """Record the promise as broken unless it was *kept*."""
        if not kept and promise not in self.broken:
            self.broken.append(promise)
