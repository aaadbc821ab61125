"""A page or program on `/v1/ws`: what each request does on the bus.

It is a session like any other, so its limits, its budget and its pace are those of every session. It hears through a
`Feed`, as event streams do: a subscription misses nothing and repeats nothing, and each has its own position. Who
publishes hears itself, as with `POST` and an event stream, so that live messages and missed ones are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec

from gateway.access.authorization import KEY_PREFIX, key_identity
from gateway.adapter import ConnectionRequest
from gateway.core.channels import valid_name
from gateway.core.errors import AlreadySubscribed, Forbidden, NotSubscribed, RequestError, UnknownChannel
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import REST, Form, Message, Peer
from gateway.core.outbox import LOW_WATER
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.http import listing, views
from gateway.http.callers import check_possible
from gateway.http.events import MAX_OUTBOX
from gateway.http.feed import Feed, Subscription
from gateway.http.history import PAGE
from gateway.http.media import ParsedContent, parse_content
from gateway.http.problems import Problem, direct_refusal, problem_of
from gateway.http.publish import check_key, find_published, message_key
from gateway.http.replay import needs_history
from gateway.http.rest_helpers import outcome_unknown
from gateway.http.selection import Selection, pattern_of, prefix_of
from gateway.runtime import Gateway

from . import messages
from .messages import PATH, MalformedMessage, RequestId, decode
from .reads import Reads

ONE_OF_BOTH = "name a `channel` or a `pattern`, and not both"


class WebSocketSession(Session):
    """One connection."""

    protocol = REST
    text = True
    echo = True
    max_outbox = MAX_OUTBOX

    def __init__(self, gateway: Gateway, principal: Principal) -> None:
        super().__init__(gateway.bus, principal)
        self._gateway = gateway
        self._reads = Reads(self, gateway.answer_scheduler, self._send_page)
        self._feed = Feed(gateway, self, self._emit, self._reads.catch_up)
        self._subscriptions: dict[Selection, Subscription] = {}
        self.stream(self._welcome())  # made when it is sent: the key's owner is not known yet

    # Called by the shell

    def handle(self, data: bytes) -> None:
        """Act on one request; a malformed one is refused, and many of them end the connection."""
        try:
            request = decode(data)
        except MalformedMessage as error:
            self._refuse(error.request, Problem("request-refused", str(error)))
            self.record_malformed()
            return
        try:
            VERBS[type(request)](self, request)
        except RequestError as error:
            self._refuse(request.request, error)

    @property
    def overloaded(self) -> bool:
        """Whether the next request has to wait, also for answers that wait for their turns."""
        return self._reads.is_full or super().overloaded

    def may_log(self, data: bytes) -> bool:
        """Whether it is a message to others, or cannot be read."""
        try:
            return isinstance(decode(data), messages.PublishCommand | messages.DirectCommand)
        except MalformedMessage:
            return True

    @property
    def held_size(self) -> int:
        """About how many bytes are kept for the peer."""
        return super().held_size + self._feed.held_size

    def _discard(self) -> None:
        self._feed.discard()
        self._reads.discard()
        super()._discard()

    # Called by the bus

    def deliver(self, message: Message) -> None:
        """Queue a direct message at once, any other message once it is on disk."""
        if message.target is not None:
            self.put(text_frame(_tagged("direct", views.message(self.bus.peers, message))))
        elif self.closing is None:
            self._feed.offer(message)

    def peer_joined(self, channel: str, peer: Peer) -> None:
        """Tell the client that a peer joined."""
        self.put(_presence("joined", channel, peer))

    def peer_left(self, channel: str, peer: Peer) -> None:
        """Tell the client that a peer left."""
        self.put(_presence("left", channel, peer))

    def _emit(self, subscription: Subscription, message: Message) -> None:
        self.put(self._frame_of(subscription, message))

    def _frame_of(self, subscription: Subscription, message: Message) -> bytes:
        prefixes = subscription.selection.prefixes
        form = message.form(f"{REST}/ws {pattern_of(prefixes[0])}" if prefixes else f"{REST}/ws", self._make_frame)
        assert isinstance(form, bytes)
        return form

    def _make_frame(self, message: Message, key: str) -> Form:
        pattern = key.partition(" ")[2]
        where = b'"pattern":%b,' % dumps(pattern) if pattern else b""
        return text_frame(b'{"type":"message",' + where + views.message(self.bus.peers, message)[1:])

    # Missed messages

    def _send_page(self) -> bool:
        """Queue a page of what was missed, which may be empty; return whether there may be another one."""
        if (found := self._feed.next_page()) is None:
            return False
        subscription, (gap, missed) = found
        if gap is not None:
            self.send(text_frame(dumps({"type": "gap", **_where(subscription.selection), **gap._asdict()})))
        for message in missed:
            self.send(self._frame_of(subscription, message))
        return True

    # Requests

    def subscribe(self, request: messages.SubscribeCommand) -> None:
        """Listen to a channel or to a pattern."""
        selection = self._selection(request.channel, request.pattern)
        try:
            for channel in selection.channels:
                self._check("subscribe", channel)
                self._check_missed(channel, request.after)
                self.bus.subscribe(self, channel)
            for prefix in selection.prefixes:
                self.pace("")
                if not self._gateway.access.has_any_right(self.principal, ("subscribe",)):
                    raise Forbidden("subscribe", pattern_of(prefix))
                self.bus.watchers.add(self, prefix)
        except AlreadySubscribed as error:
            raise Problem("request-refused", f"this connection listens to {str(error)!r} already") from None
        position = self._gateway.log.synced_seq if request.after is None else request.after
        self._answer("subscribed", request.request, **_where(selection), sequence=position)
        self._subscriptions[selection] = self._feed.add(selection, request.after)

    def unsubscribe(self, request: messages.UnsubscribeCommand) -> None:
        """Stop listening."""
        selection = self._selection(request.channel, request.pattern)
        self.pace("")
        try:
            for channel in selection.channels:
                self.stop_listening(channel)
            for prefix in selection.prefixes:
                self.bus.watchers.remove(self, prefix)
        except NotSubscribed as error:
            raise Problem("request-refused", f"this connection does not listen to {str(error)!r}") from None
        self._feed.remove(self._subscriptions.pop(selection))
        self._answer("unsubscribed", request.request, **_where(selection))

    def publish(self, request: messages.PublishCommand) -> None:
        """Publish a message, and answer once it is on disk."""
        self._check("publish", request.channel)
        content = self._content(request.content)
        given = request.idempotencyKey
        key = None if given is None else self._message_key(request.channel, given)
        message = Message(request.channel, self.who, REST, content.text, parent=content.parent, key=key)
        found = None if given is None else find_published(self._gateway, message, given)
        taken = self.bus.publish(message, self) if found is None else found
        body = dumps(request.channel)
        self.bus.acceptance.when_accepted(
            taken,
            lambda: self._send("published", request.request, views.accepted(body, taken)),
            lambda: self._refuse(request.request, outcome_unknown(self.bus.ledger)),
        )

    def direct(self, request: messages.DirectCommand) -> None:
        """Send a message to one peer in a channel."""
        self._check("direct", request.channel)
        message = Message(request.channel, self.who, REST, self._content(request.content).text)
        self.bus.send_direct(message, request.peer, partial(self._direct_answered, request, message))

    def _direct_answered(self, request: messages.DirectCommand, message: Message, delivered: int | None) -> None:
        if delivered:
            self._answer("delivered", request.request, id=message.id, delivered=delivered)
        else:
            self._refuse(request.request, direct_refusal(message, request.peer, delivered))

    def history(self, request: messages.HistoryCommand) -> None:
        """Answer with a page of history."""
        self._check("history", request.channel)
        self._charge(request.limit / PAGE)
        self._reads.add([partial(self._send_history, request)])

    def presence(self, request: messages.PresenceCommand) -> None:
        """Answer with the peers in a channel, a part at a time; `more` is true in all parts but the last."""
        self._check("subscribe", request.channel)
        peers = self.bus.peers_in(request.channel, self)
        self._charge(len(peers) / listing.BATCH)
        starts = range(0, max(1, len(peers)), listing.BATCH)
        self._reads.add(partial(self._send_peers, request, peers, start) for start in starts)

    def ping(self, request: messages.PingCommand) -> None:
        """Answer with `pong`."""
        self.pace("")
        self._answer("pong", request.request)

    # Parts of requests

    def _send_history(self, request: messages.HistoryCommand) -> None:
        try:
            if not self.bus.allowed(self.principal, "history", request.channel):  # rights may have ended meanwhile
                raise Forbidden("history", request.channel)
            found = self._gateway.index.history(
                request.channel,
                after=request.after,
                before=request.before,
                newest_first=request.newestFirst,
                limit=request.limit,
                size=LOW_WATER,
            )
        except RequestError as error:
            self._refuse(request.request, error)
            return
        shown = b",".join(views.message(self.bus.peers, message) for message in found)
        body = b'{"channel":%b,"messages":[%b],"next":%b}' % (
            *(dumps(request.channel), shown),
            dumps(found[-1].seq if found else None),
        )
        self._send("history", request.request, body)

    def _send_peers(self, request: messages.PresenceCommand, peers: list[Peer], start: int) -> None:
        part = peers[start : start + listing.BATCH]
        more = start + listing.BATCH < len(peers)
        shown = [views.peer(peer) for peer in part]
        self._answer("presence", request.request, channel=request.channel, peers=shown, more=more)

    def _check(self, verb: str, channel: str) -> None:
        """Raise unless the peer may *verb* on *channel* now, and it exists or can be created."""
        if not valid_name(channel):
            raise UnknownChannel(channel)
        self.check(verb, channel)
        check_possible(self._gateway, channel)

    def _check_missed(self, channel: str, after: int | None) -> None:
        """Raise `Forbidden` unless the peer may hear what was said on *channel* after the sequence *after*."""
        if after is None or self.bus.allowed(self.principal, "history", channel):
            return
        if needs_history(self._gateway, channel, after):
            raise Forbidden("history", channel)

    def _charge(self, requests: float) -> None:
        """Charge the network for a request that is as much work as *requests* usual ones, as REST does."""
        self._gateway.charge(self.principal.network, requests)

    def _selection(self, channel: str | None, pattern: str | None) -> Selection:
        if (channel is None) == (pattern is None):
            raise Problem("invalid-parameter", ONE_OF_BOTH)
        return Selection((channel,)) if channel is not None else Selection((), (prefix_of(pattern or ""),))

    def _content(self, content: msgspec.Raw) -> ParsedContent:
        try:
            return parse_content(bytes(content))
        except Problem:
            self.record_malformed()
            raise

    def _message_key(self, channel: str, key: str) -> str:
        """Return the id by which the message is found again; it is that of the same *key* on `POST`."""
        check_key(key)
        name = self.principal.name.removeprefix(KEY_PREFIX) if self.principal.key else None
        return message_key(key_identity(name), channel, key)

    def _welcome(self) -> Iterator[Form]:
        yield text_frame(dumps({"type": "welcome", **views.peer(self.who), "version": self._gateway.version}))

    def _answer(self, kind: str, request: RequestId, **body: Any) -> None:
        self._send(kind, request, dumps(body))

    def _send(self, kind: str, request: RequestId, body: bytes) -> None:
        """Send the JSON object *body* as the answer of a *kind* to *request*."""
        head = dumps({"type": kind, "request": request})[:-1]
        self.send(text_frame(head + (b"," if body != b"{}" else b"") + body[1:]))

    def _refuse(self, request: RequestId, error: RequestError) -> None:
        problem = problem_of(error)
        self._gateway.metrics.count("refused", REST, str(problem.status))
        more = {"retryAfter": int(problem.headers["Retry-After"])} if "Retry-After" in problem.headers else {}
        self._send("error", request, b'{"problem":%b}' % problem.body(**more))


VERBS: Mapping[type[messages.Request], Callable[[WebSocketSession, Any], None]] = {
    messages.SubscribeCommand: WebSocketSession.subscribe,
    messages.UnsubscribeCommand: WebSocketSession.unsubscribe,
    messages.PublishCommand: WebSocketSession.publish,
    messages.DirectCommand: WebSocketSession.direct,
    messages.HistoryCommand: WebSocketSession.history,
    messages.PresenceCommand: WebSocketSession.presence,
    messages.PingCommand: WebSocketSession.ping,
}


class WebSocketService:
    """Accepts connections to `/v1/ws`."""

    name = REST
    paths = (PATH,)

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def accept(self, request: ConnectionRequest) -> WebSocketSession:
        """Return the session of a new connection."""
        return WebSocketSession(self._gateway, request.principal)


def _tagged(kind: str, body: bytes) -> bytes:
    return b'{"type":"%b",%b' % (kind.encode(), body[1:])


def _where(selection: Selection) -> dict[str, str]:
    if selection.prefixes:
        return {"pattern": pattern_of(selection.prefixes[0])}
    return {"channel": selection.channels[0]}


@lru_cache(maxsize=4)  # all listeners of a channel get the same frame
def _presence(kind: str, channel: str, peer: Peer) -> bytes:
    return text_frame(dumps({"type": kind, **views.peer(peer), "channel": channel}))
