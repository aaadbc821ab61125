"""Publishes messages for clients, on a connection or by REST: checks rights, finds the sender, drops duplicates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from adapters.streamr.model.positions import PublisherPositions
from adapters.streamr.model.stored import MessageRange
from adapters.streamr.wire.claims import without_claim
from adapters.streamr.wire.ids import NAME, channel_of
from adapters.streamr.wire.message import parse_message
from adapters.streamr.wire.validation_errors import invalid_message
from gateway.access.authorization import KEY_PREFIX
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import Forbidden, RequestError
from gateway.core.message import Message, Peer
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.shared_ids import match_shared_id

from .conversion import Ids, author_of, ids_of, to_bus_message
from .validation import ambiguous_partitions, check_message, check_signature, is_late, is_signed

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from adapters.streamr.message_forms import Forms
    from adapters.streamr.model.stored import StoredMessages
    from adapters.streamr.model.users import User
    from adapters.streamr.trust import Trust
    from adapters.streamr.wire.control import PublishRequest
    from adapters.streamr.wire.message import StreamMessage
    from gateway.core.bus import Bus

    from .participant import Participant

OTHER_CONTENT = "The id of this message belongs to one with other content"
NOT_PUBLISHED = "The publisher is an address of the gateway, which did not publish this message here"
LINK_PRINCIPAL = f"{NAME}:peer"  # the principal of links to other brokers, which carry what many wrote
NO_PRINCIPAL = Principal("")  # for the rate of an author alone: the connection's own is checked elsewhere
MAX_EXTERNAL = 65_536  # addresses that are known not to be the gateway's


class Requester(Protocol):
    """The client that asks to publish: a connection, a REST request, or the import of a dump."""

    @property
    def principal(self) -> Principal:
        """The principal behind the connection."""

    @property
    def who(self) -> Peer:
        """The peer that sends messages which name no publisher."""

    @property
    def user(self) -> User | None:
        """The user of the session token or key that was shown before."""

    @property
    def address(self) -> str | None:
        """The Ethereum address whose session token was shown."""

    def authenticate(self, request: PublishRequest) -> User:
        """The user of the token or key that *request* carries; raises if it is not valid."""

    def pace_author(self, author: Peer) -> None:
        """Raise `Throttled` if *author*, who signed a message that this requester sends, exceeds the rate limit."""


def pace_author(bus: Bus, sender: Peer, author: Peer) -> None:
    """Raise `Throttled` if *author* exceeds the rate limit; nothing is counted if *sender* is the author."""
    if bus.throttle is not None and sender.number != author.number:
        bus.pace(NO_PRINCIPAL, author, "")


Refuse = Callable[[RequestError], None]


class PublishHandler:
    """Checks and publishes stream messages."""

    def __init__(
        self, context: Context, trust: Trust, forms: Forms, stored: StoredMessages, participant: Participant
    ) -> None:
        self._context = context
        self._trust = trust
        self._forms = forms
        self._stored = stored
        self._participant = participant
        self.positions = PublisherPositions(self._newest_timestamp)
        self._external = BoundedMap[str, None](MAX_EXTERNAL)  # addresses that are not the gateway's
        self.kept_since = 0  # ms; a copy of a message that was signed earlier cannot be recognised

    def publish(
        self, requester: Requester, request: PublishRequest, channel: str, refuse: Refuse, origin: Session | None = None
    ) -> Peer | None:
        """Publish the message of *request*; return its sender, or None if it is a duplicate of a message taken before.

        A message that must be decrypted first, or comes alone by a session, may be published, or refused by *refuse*,
        later. *origin* is the requester's session, if it has one. Raises `RequestError`.
        """
        message, claim = without_claim(request.message)
        if claim is not None:
            request = replace(request, message=message)
        signed, ids = is_signed(message), ids_of(message)
        self.check(requester, request, "publish", channel)
        if claim is not None:
            found = match_shared_id(self._context.bus, claim, NAME, channel, message.json_content())
            if found.is_copy:
                return None
            ids = ids[0], (*ids[1], found.id)
        if signed and self.is_gateway_publisher(message):
            self._check_copy(message, channel)
            return None
        if not self._is_new(requester, message, channel) and self._is_copy(requester, message, ids):
            return None
        if signed and self.is_beyond_history(message):
            raise invalid_message("The message is older than the history that is kept here", message)
        sender = self.verified_sender(requester, request)
        if self._context.streams.decrypts(message.id.stream_id):
            publish = partial(self._publish, ids, channel, sender, origin, refuse, request.version)
            decrypted = partial(self._publish_decrypted, requester, message, ids, publish)
            self._participant.decrypt(message, decrypted, refuse, origin)
        else:
            self._publish(ids, channel, sender, origin, refuse, request.version, message)
        return sender

    def tick(self, now: int) -> None:
        """Called once a second: look up since when the history is kept. *now* is in ms."""
        with suppress(RequestError):  # an unreadable index is reported to the next requester that needs it
            self.kept_since = self._context.services.index.kept_since(now)

    def is_beyond_history(self, message: StreamMessage) -> bool:
        """Whether a copy of *message*, which is signed, could not be recognised any more."""
        return message.id.timestamp < self.kept_since

    def check(self, requester: Requester, request: PublishRequest, verb: str, channel: str) -> None:
        """Raise unless *request* may *verb* on *channel*, and its message is valid but for the signature.

        A link brings messages of authors who have no rights here, so the right of the link counts.
        """
        if is_signed(request.message) and requester.principal.name != LINK_PRINCIPAL:
            self._check_publisher(requester, request, verb, channel)
        elif not self._context.bus.allowed(requester.authenticate(request).principal, verb, channel):
            raise Forbidden(verb, channel)
        rules = self._context.streams.rules(request.message.id.stream_id)
        rules.check(request.message)
        check_message(request.message, self._context.bus.clock(), rules.partitions)

    def verified_sender(self, requester: Requester, request: PublishRequest) -> Peer:
        """The sender of a message: the address that signed it, or the requester.

        Verifies the signature, and counts the message against its author's rate. Raises `RequestError`.
        """
        message, peers = request.message, self._context.bus.peers
        publisher = message.id.publisher_id.lower()
        if is_signed(message):
            self.check_signature(message)
            author = peers.identity(NAME, publisher)
            requester.pace_author(author)
            return author
        if not publisher or requester.principal.name == LINK_PRINCIPAL:  # nothing proves who wrote an unsigned message
            return requester.who
        for user in (requester.authenticate(request), requester.user):
            if user is not None and user.may_publish_as(publisher) and (peer := user.peer(peers)) is not None:
                return peer
        raise invalid_message("An unsigned message can name no publisher but its own connection's user", message)

    def check_signature(self, message: StreamMessage) -> None:
        """Raise unless the publisher signed *message*, with an address that is not the gateway's."""
        check_signature(message)
        if self.is_gateway_publisher(message):
            raise invalid_message(NOT_PUBLISHED, message)
        self._external[message.id.publisher_id.lower()] = None  # only the holder of its key could sign

    def is_gateway_publisher(self, message: StreamMessage) -> bool:
        """Whether the publisher of *message* is an address by which the gateway signs for peers of other protocols."""
        publisher = message.id.publisher_id.lower()
        return publisher not in self._external and self._trust.is_gateway_address(publisher)

    def _check_copy(self, message: StreamMessage, channel: str) -> None:
        """Raise unless *message*, which names the gateway as its publisher, equals the one that the gateway signed."""
        check_signature(message)
        position = message.id.position
        stored = self._stored.between(channel, MessageRange(position, position, message.id.publisher_id.lower()))
        found = next(filter(None, stored), None)
        shown = None if found is None else self._forms.stream_message(found)
        if shown is None:
            raise invalid_message(NOT_PUBLISHED, message)
        if shown.content != message.content:
            raise invalid_message(OTHER_CONTENT, message)

    def _check_publisher(self, requester: Requester, request: PublishRequest, verb: str, channel: str) -> None:
        """Raise unless the publisher's address may *verb* without a token, or the requester's API key may."""
        stream, publisher = request.message.id.stream_id, request.message.id.publisher_id
        allowed = self._context.bus.allowed
        principal = Principal(f"{NAME}:{publisher.lower()}", requester.principal.network)
        if not allowed(principal, verb, channel):
            user, _ = requester.authenticate(request)
            if not user.name.startswith(KEY_PREFIX) or not allowed(user, verb, channel):
                raise invalid_message(f"{publisher} is not a publisher on stream {stream}", request.message)

    def _is_new(self, requester: Requester, message: StreamMessage, channel: str) -> bool:
        """Whether the position of *message* alone shows that it is no copy."""
        if not self.positions.beyond(channel, author_of(message), message.id.position):
            return False
        if not is_signed(message):
            return True
        return message.id.publisher_id.lower() == requester.address or self.is_unambiguous(message)

    def is_unambiguous(self, message: StreamMessage) -> bool:
        """Whether the signed text of *message* is not that of a message that was taken before with other fields.

        Others could split an old signed text into fields in a new way, which gives it another position.
        """
        partitions = ambiguous_partitions(message, self._context.bus.clock())
        return partitions is not None and all(self._is_unused(partition, message) for partition in partitions)

    def _is_unused(self, partition: tuple[str, int], message: StreamMessage) -> bool:
        """Whether the publisher of *message* has published nothing at its time or later in *partition*."""
        try:
            channel = self._context.bus.channels.channel(NAME, channel_of(*partition))
        except RequestError:
            return False
        return self.positions.beyond(channel, author_of(message), message.id.position)

    def _newest_timestamp(self, channel: str) -> int:
        newest = next(self._context.services.index.newest(channel), None)
        return 0 if newest is None else newest.timestamp

    def _is_copy(self, requester: Requester, message: StreamMessage, ids: Ids) -> bool:
        """Whether *message* was taken before; raises `InvalidMessage` if its id was, with other content."""
        # Only others have a reason to split a signed text into other fields: one lookup is enough for the publisher.
        own = requester.address == message.id.publisher_id.lower()
        _, names = ids
        for name in names[:1] if own else names:
            receipt = self._context.bus.find(name)
            entry = None if receipt is None else self._context.services.index.entry(receipt.seq)
            if isinstance(entry, Message) and entry.protocol == NAME and entry.wire is not None:
                if parse_message(entry.wire).content != message.content:
                    raise invalid_message(OTHER_CONTENT, message)
                return True
        return False

    def _publish_decrypted(
        self,
        requester: Requester,
        message: StreamMessage,
        ids: Ids,
        publish: Callable[[StreamMessage], None],
        decrypted: StreamMessage,
    ) -> None:
        """Publish *decrypted*, unless another copy of *message* was published while this one waited for its key."""
        if not self._is_copy(requester, message, ids):
            publish(decrypted)

    def _publish(
        self,
        ids: Ids,
        channel: str,
        sender: Peer,
        origin: Session | None,
        refuse: Refuse,
        control: int,
        message: StreamMessage,
    ) -> None:
        self.positions.advance(channel, author_of(message), message.id.position)
        sent = to_bus_message(message, ids, channel, sender, control)
        sent.late = is_late(message.id.timestamp, self._context.bus.clock())
        if origin is None:
            self._context.bus.publish(sent)
        else:
            self._context.bus.publish_alone(sent, origin, refuse)
