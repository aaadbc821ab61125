"""The access log: one line for each connection that is opened or closed, each refusal, and each new channel.

Connections are those of peers: WebSockets, Sprout, event streams, and links to other relays. Single HTTP requests have
no line unless they are refused. The lines name keys, and never contain a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

import structlog

from gateway.core.message import Peer
from gateway.core.subscriber import Subscriber

from . import logs

logger = structlog.get_logger("trellis")


class AccessLog:
    """Writes the lines, if it is *enabled*."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._opened: dict[Subscriber, float] = {}

    def opened(self, session: Subscriber, peer: Peer) -> None:
        """Write that the connection of *session* was opened; others see it as *peer*."""
        self._opened[session] = monotonic()
        if self.enabled:
            principal = session.principal
            about = {"peer": peer.number, "network": principal.network, "principal": principal.name}
            _write("connection opened", session.protocol, protocol=session.protocol, **about)

    def closed(self, session: Subscriber) -> None:
        """Write that the connection of *session* has ended."""
        began = self._opened.pop(session, None)
        if self.enabled and began is not None:
            close = session.closing
            _write(
                "connection closed",
                session.protocol,
                protocol=session.protocol,
                peer=session.peer.number,
                network=session.principal.network,
                seconds=round(monotonic() - began, 3),
                reason="the other side ended it" if close is None else close.reason,
                **({} if close is None else {"code": close.code}),
            )

    def refused(self, protocol: str, reason: str, details: Mapping[str, object]) -> None:
        """Write that a request or connection was refused for this *reason*."""
        if self.enabled:
            _write("refused", f"{protocol} {reason}", protocol=protocol, reason=reason, **details)

    def channel_created(self, channel: str) -> None:
        """Write that *channel* was created."""
        if self.enabled:
            _write("channel made", "", channel=channel)


def _write(event: str, kind: str, **about: object) -> None:
    """Write a line unless there were too many of this *kind*, which is checked first: a flood must cost little."""
    left_out = logs.LIMIT.admit(f"{event} {kind}")
    if left_out is not None:
        logger.info(event, **about, **{logs.ADMITTED: left_out})
