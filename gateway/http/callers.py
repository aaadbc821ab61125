"""Authenticates and authorizes REST requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from gateway.access.authorization import KEY_PREFIX, bearer_token, key_identity
from gateway.core.channels import CREATION_COST, valid_name
from gateway.core.errors import Forbidden, Throttled, UnknownChannel
from gateway.core.message import REST, Peer
from gateway.core.principal import Principal
from gateway.runtime import Gateway

from .bodies import network_of
from .paced import paced_response
from .problems import Problem, shortened
from .replay import needs_history
from .rest_helpers import decode_segment
from .selection import Selection, pattern_of

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="trellis"'}
KNOWING_VERBS = ("subscribe", "history", "publish")  # a right to any of these lets a caller know that a channel exists
LISTING_FORBIDDEN = f"not allowed to list channels: that needs a right to {' or '.join(KNOWING_VERBS)} on some channel"


class Caller:
    """The principal behind one request, and the durable peer that others know it as."""

    __slots__ = ("_paid", "gateway", "key", "principal")

    def __init__(self, gateway: Gateway, request: Request, key: str | None = None) -> None:
        """Authenticate *request*; *key* is the API key of clients that cannot send headers.

        Every request is charged to its network here, even if it is refused later. Raises `Problem` 401 or 403, or
        `Throttled`.
        """
        self.gateway = gateway
        address = admit_request(gateway, request)
        token = bearer_token(request.headers.get("authorization")) or key
        principal = gateway.access.authenticate(REST, token, address)
        if principal is None:
            raise Problem("unknown-key", "no such key; send one as `Authorization: Bearer KEY`", CHALLENGE)
        self.principal: Principal = principal
        is_key = principal.name.startswith(KEY_PREFIX)
        self.key = principal.name.removeprefix(KEY_PREFIX) if is_key else None  # the name of the API key
        self._paid = True  # the network has paid for the first thing that is asked

    @property
    def who(self) -> Peer:
        """Return the durable peer: that of the key, or the one that all callers without a key share."""
        return self.gateway.peers.identity(REST, key_identity(self.key), self.key)

    def may(self, verb: str, channel: str) -> bool:
        """Whether the caller has the right to *verb* on *channel*."""
        return self.gateway.access.allowed(self.principal, verb, channel)

    def may_know(self, channel: str) -> bool:
        """Whether the caller may know that *channel* exists."""
        return any(self.may(verb, channel) for verb in KNOWING_VERBS)

    def check(self, verb: str, channel: str) -> None:
        """Raise `Forbidden` or `Throttled` unless the caller may *verb* on *channel* now.

        An empty *channel* stands for all of them: only a right to all channels covers it.
        """
        self.authorize(verb, channel)
        self.pace(channel)

    def authorize(self, verb: str, channel: str) -> None:
        """Raise `Forbidden` unless the caller has the right to *verb* on *channel*."""
        if not self.may(verb, channel):
            if not self.key and self.gateway.access.enabled:
                raise Problem("key-required", f"{Forbidden(verb, channel)} without a key", CHALLENGE)
            raise Forbidden(verb, channel)

    def authorize_listing(self) -> None:
        """Raise `Problem` 401 or 403 unless the caller may know any channel at all."""
        if not self.gateway.access.has_any_right(self.principal, KNOWING_VERBS):
            if not self.key:
                raise Problem("key-required", f"{LISTING_FORBIDDEN}; send a key", CHALLENGE)
            raise Problem("forbidden", f"{LISTING_FORBIDDEN}; use a key that has one")

    def pace(self, channel: str) -> None:
        """Raise `Throttled` if the caller asks too often; callers without a key are told apart by their networks."""
        paid, self._paid = self._paid, False
        if self.gateway.throttle is not None:
            principal = Principal(self.principal.name) if paid else self.principal
            self.gateway.bus.pace(principal, None if self.key is None else self.who, channel)

    def charge(self, requests: float) -> None:
        """Charge the caller's network for so many *requests*."""
        self.gateway.charge(self.principal.network, requests)

    def charge_creation(self, channel: str) -> None:
        """Charge the request for *channel*, which it is about to use, if there is none yet."""
        if not self.gateway.channels.exists(channel):
            self.charge(CREATION_COST)

    def charge_malformed(self, size: int) -> None:
        """Charge the network of the caller for *size* bytes of malformed input."""
        if (read_pacer := self.gateway.bus.read_pacer) is not None:
            read_pacer.charge_malformed_body(self.principal.network, size)

    async def paced_response(self, slices: Iterator[bytes], media_type: str, verb: str, channel: str) -> Response:
        """The response that carries *slices*, at the caller's pace and while it may *verb* on *channel*.

        See `gateway.http.paced`.
        """
        gateway, ask = self.gateway, partial(self.authorize, verb, channel)
        return await paced_response(
            gateway.answer_scheduler, gateway.budget, self.principal.network, slices, media_type, ask
        )

    def resolve_channel(self, verb: str, segment: str, *, paced: bool = True) -> str:
        """Return the channel that the *segment* of a path names, if the caller may *verb* there and it can exist.

        See `check_channel`; raises `Problem` 400 as well.
        """
        channel = path_segment(segment)
        self.check_channel(verb, channel, paced=paced)
        return channel

    def check_channel(self, verb: str, channel: str, *, paced: bool = True) -> None:
        """Raise unless the caller may *verb* on *channel* now, and it exists or can be created.

        An invalid name is refused before anything is looked up or counted by it. Without *paced*, the caller charges
        the rate limit itself, message by message. Raises `UnknownChannel`, `Forbidden` or `Throttled`.
        """
        if not valid_name(channel):
            raise UnknownChannel(channel)
        self.authorize(verb, channel)
        if paced:
            self.pace(channel)
        check_possible(self.gateway, channel)

    def check_selection(self, selection: Selection) -> None:
        """Raise unless the caller may listen to each channel of *selection*, and to some channel by its patterns.

        Which channels of a pattern the caller may listen to is checked for each message.
        """
        for channel in selection.channels:
            self.check_channel("subscribe", channel)
        for prefix in selection.prefixes:
            if not self.gateway.access.has_any_right(self.principal, ("subscribe",)):
                self.authorize("subscribe", pattern_of(prefix))
            self.pace("")

    def check_missed(self, selection: Selection, after: int | None) -> None:
        """Raise unless the caller may hear what it missed of each channel of *selection* after the sequence *after*.

        What it may not hear of channels by a pattern is left out.
        """
        for channel in selection.channels if after is not None else ():
            if not self.may("history", channel) and needs_history(self.gateway, channel, after or 0):
                self.authorize("history", channel)


def check_possible(gateway: Gateway, channel: str) -> None:
    """Raise `UnknownChannel` unless *channel* exists, has listeners, or can be created by its users."""
    if (
        gateway.settings.channels.create != "open"
        and not gateway.channels.exists(channel)
        and not gateway.bus.listener_count(channel)
    ):
        raise UnknownChannel(channel)


def admit_request(gateway: Gateway, request: HTTPConnection) -> str:
    """Check the origin, the host and the rate of *request*, and return the network that it comes from.

    Every request is charged to its network here. Raises `Problem` 403, or `Throttled`.
    """
    headers = request.headers
    if (reason := gateway.access.origin_refusal(headers.get("origin"), headers.get("host"))) is not None:
        raise Problem("foreign-origin", reason)
    address = network_of(request)
    if gateway.throttle is not None and (wait := gateway.throttle.take_network(address)):
        raise Throttled(wait)
    return address


def path_segment(segment: str) -> str:
    """Return the text of a raw *segment* of a path (RFC 3986, section 2.1); `Problem` 400 if it is not UTF-8."""
    try:
        return decode_segment(segment)
    except UnicodeError:
        raise Problem("malformed-path", f"{shortened(segment)} is not percent-encoded UTF-8") from None
