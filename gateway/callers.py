"""Who makes a REST request, and whether they may."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from fastapi import Request

from .auth import KEY, bearer
from .channels import valid_name
from .errors import Forbidden, UnknownChannel
from .message import Peer
from .problems import PROTOCOL, Problem
from .runtime import Gateway
from .session import Principal

ANONYMOUS = "rest"  # the durable identity of all who come without a key
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="trellis"'}


class Caller:
    """The principal behind one request, and the durable peer that others know it as."""

    __slots__ = ("gateway", "principal")

    def __init__(self, gateway: Gateway, request: Request, key: str | None = None) -> None:
        """Find out who sent *request*; *key* is for those who cannot send headers. Raises `Problem` 401 or 403."""
        self.gateway = gateway
        headers = request.headers
        if (reason := gateway.access.unwelcome(headers.get("origin"), headers.get("host"))) is not None:
            raise Problem(403, reason)
        client = request.scope.get("client")
        token = bearer(headers.get("authorization")) or key
        principal = gateway.access.authenticate(PROTOCOL, token, client[0] if client else "")
        if principal is None:
            raise Problem(401, "no such key; send one as `Authorization: Bearer KEY`", CHALLENGE)
        self.principal: Principal = principal

    @property
    def key(self) -> str | None:
        """The name of the API key, None without one."""
        name = self.principal.name
        return name.removeprefix(KEY) if name.startswith(KEY) else None

    @property
    def who(self) -> Peer:
        """The durable peer: the key's, or the one of all who have none."""
        return self.gateway.peers.identity(PROTOCOL, self.key or ANONYMOUS, self.key)

    def may(self, verb: str, channel: str) -> bool:
        """Whether the caller has the right to *verb* on *channel*."""
        return self.gateway.access.allowed(self.principal, verb, channel)

    def may_know(self, channel: str) -> bool:
        """Whether the caller may know that there is *channel*."""
        return any(self.may(verb, channel) for verb in ("subscribe", "history", "publish"))

    def check(self, verb: str, channel: str) -> None:
        """Raise `Forbidden` or `Throttled` unless the caller may *verb* on *channel* now.

        What concerns no one channel is asked with an empty one, which only a right to all channels covers.
        """
        if not self.may(verb, channel):
            if not self.key and self.gateway.access.enabled:
                raise Problem(401, f"{Forbidden(verb, channel)} without a key", CHALLENGE)
            raise Forbidden(verb, channel)
        self.gateway.bus.pace(self.principal, self.who, channel)

    def look(self, verb: str, segment: str) -> str:
        """The channel that a path's *segment* names, if the caller may *verb* there and there can be one."""
        channel = unquoted(segment)
        self.check(verb, channel)
        gateway = self.gateway
        if not valid_name(channel) or (
            gateway.settings.channels.create != "open"
            and not gateway.channels.exists(channel)
            and not gateway.bus.members(channel)
        ):
            raise UnknownChannel(channel)
        return channel


def unquoted(segment: str) -> str:
    """What a raw *segment* of a path says (RFC 3986, section 2.1); UTF-8, percent-encoded or not."""
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise Problem(400, f"{segment!r} is not percent-encoded UTF-8") from None
