"""Where the gateway is that is attacked, and what an attack has to tell afterwards."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass, field

HOST = "127.0.0.1"

# Where attackers come from: rate limits are for each address, and honest peers have another, unless this is that one.
SOURCE = os.environ.get("ATTACKERS_ADDRESS", "127.0.0.66")

RELAY_HOST = "127.0.0.67"  # where whoever the gateway dials listens


@dataclass(frozen=True)
class Target:
    """Ports of the gateway on `HOST`; 0 where there is none. *keys* are API keys by name, where there are any.

    *relay* is a socket that listens where the gateway dials somebody, if it has a link.
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
    """What became of an attack. `dropped` has a figure in seconds for each connection that the gateway ended.

    `told` counts what the gateway answered; `broken` names promises that it did not keep.
    """

    connections: int = 0
    dropped: list[float] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    broken: list[str] = field(default_factory=list)

    def hold(self, promise: str, kept: object) -> None:
        """Remember that a promise was not *kept*."""
        if not kept and promise not in self.broken:
            self.broken.append(promise)
