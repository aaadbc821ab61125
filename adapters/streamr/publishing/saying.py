"""Saying something on a stream: who may, as whom, and what becomes of it; on a connection and by REST alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from adapters.streamr.model.positions import Positions
from adapters.streamr.model.stored import Span
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.invalid import invalid
from adapters.streamr.wire.message import parse_message
from gateway.access.auth import KEY_PREFIX
from gateway.core.bounded import BoundedMap
from gateway.core.errors import Forbidden, RequestError
from gateway.core.message import LATE_AFTER, Message, Peer
from gateway.core.principal import Principal
from gateway.core.session import Session

from .publishing import Ids, as_sent, check, check_signature, ids_of, is_clear_cut, is_signed

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from adapters.streamr.forms import Forms
    from adapters.streamr.model.stored import Stored
    from adapters.streamr.model.users import User
    from adapters.streamr.trust import Trust
    from adapters.streamr.wire.control import PublishRequest
    from adapters.streamr.wire.message import StreamMessage
    from gateway.core.bus import Bus

    from .participant import Participant

OTHER_CONTENT = "The id of this message belongs to one with other content"
NOT_SAID = "The publisher is an address of the gateway, which did not say this here"
NOBODY = Principal("")  # who is paced elsewhere: as a connection
MAX_OTHERS = 65_536  # addresses that are remembered as not the gateway's own


class Speaker(Protocol):
    """Who wants to say something."""

    @property
    def principal(self) -> Principal:
        """Who stands behind the connection."""

    @property
    def who(self) -> Peer:
        """Who says what names no publisher."""

    @property
    def user(self) -> User | None:
        """Who it is, by the session token or key that was shown before."""

    @property
    def address(self) -> str | None:
        """The Ethereum address whose session token was shown."""

    def asker(self, request: PublishRequest) -> User:
        """Whose token or key the *request* carries; raises where it is none of ours."""

    def charge(self, author: Peer) -> None:
        """Raise `Throttled` where *author*, who certainly signed what this one brings, says too much."""


def charge(bus: Bus, bringer: Peer, author: Peer) -> None:
    """Pace *author* as well, where another peer brings what he signed; `Throttled` where that is too much."""
    if bus.throttle is not None and bringer.number != author.number:
        bus.pace(NOBODY, author, "")


Refuse = Callable[[RequestError], None]


class Saying:
    """The part of the adapter that takes messages."""

    def __init__(self, context: Context, trust: Trust, forms: Forms, stored: Stored, participant: Participant) -> None:
        self._context = context
        self._trust = trust
        self._forms = forms
        self._stored = stored
        self._participant = participant
        self.positions = Positions(self._newest)
        self._others = BoundedMap[str, None](MAX_OTHERS)
        self.kept_since = 0  # ms; of what was signed earlier, nobody can tell whether it is a copy

    def say(
        self, speaker: Speaker, request: PublishRequest, channel: str, refuse: Refuse, origin: Session | None = None
    ) -> Peer | None:
        """Publish the message of *request*; who said it, None where it was said before.

        What has to be decrypted first may be said, or told to *refuse*, later. *origin* is the session, if it has one.
        """
        message = request.message
        signed, ids = is_signed(message), ids_of(message)
        self.check(speaker, request, "publish", channel)
        if signed and self.is_own(message):
            self._check_copy(message, channel)
            return None
        if not self._is_new(speaker, message, channel) and self._known(speaker, message, ids):
            return None
        if signed and message.id.timestamp < self.kept_since:
            raise invalid("The message is older than the history that is kept here", message)
        sender = self.sender(speaker, request)
        if self._context.streams.decrypts(message.id.stream_id):
            say = partial(self._say, ids, channel, sender, origin, request.version)
            self._participant.say(message, partial(self._say_opened, speaker, message, ids, say), refuse, origin)
        else:
            self._say(ids, channel, sender, origin, request.version, message)
        return sender

    def tick(self, now: int) -> None:
        """A second has passed, it is *now* (ms); retention may have taken something."""
        with suppress(RequestError):  # an index that cannot be read is told to whoever asks it next
            self.kept_since = self._context.services.index.kept_since(now)

    def check(self, speaker: Speaker, request: PublishRequest, verb: str, channel: str) -> None:
        """Raise unless *request* may *verb* on *channel*, and its message is in order but for the signature."""
        if is_signed(request.message):
            self._check_publisher(speaker, request, verb, channel)
        elif not self._context.bus.allowed(speaker.asker(request)[0], verb, channel):
            raise Forbidden(verb, channel)
        rules = self._context.streams.rules(request.message.id.stream_id)
        rules.check(request.message)
        check(request.message, self._context.bus.clock(), rules.partitions)

    def sender(self, speaker: Speaker, request: PublishRequest) -> Peer:
        """Who says a message: the address that signed it, or the speaker."""
        message, peers = request.message, self._context.bus.peers
        publisher = message.id.publisher_id.lower()
        if is_signed(message):
            self.check_signature(message)
            author = peers.identity(NAME, publisher)
            speaker.charge(author)
            return author
        if not publisher:
            return speaker.who
        for user in (speaker.asker(request), speaker.user):
            if user is not None and user.is_called(publisher) and (peer := user.peer(peers)) is not None:
                return peer
        raise invalid("An unsigned message can name no publisher but its own connection's user", message)

    def check_signature(self, message: StreamMessage) -> None:
        """Raise unless the publisher signed *message*, and is not one for whom the gateway does that."""
        check_signature(message)
        if self.is_own(message):
            raise invalid(NOT_SAID, message)
        self._others[message.id.publisher_id.lower()] = None  # who has a key of his own; nobody else could sign

    def is_own(self, message: StreamMessage) -> bool:
        """Whether the publisher is an address by which the gateway shows what others say."""
        publisher = message.id.publisher_id.lower()
        return publisher not in self._others and self._trust.is_ours(publisher)

    def _check_copy(self, message: StreamMessage, channel: str) -> None:
        """Raise unless *message*, which the gateway signed, is as it was shown: what others said is not said again."""
        check_signature(message)
        place = message.id[2:4]
        stored = self._stored.between(channel, Span(place, place, message.id.publisher_id.lower()))
        found = next(filter(None, stored), None)
        shown = None if found is None else self._forms.stream_message(found)
        if shown is None:
            raise invalid(NOT_SAID, message)
        if shown.content != message.content:
            raise invalid(OTHER_CONTENT, message)

    def _check_publisher(self, speaker: Speaker, request: PublishRequest, verb: str, channel: str) -> None:
        """Raise unless the address that signed may *verb*: no token is needed then, and an API key is as good."""
        stream, publisher = request.message.id.stream_id, request.message.id.publisher_id
        allowed = self._context.bus.allowed
        principal = Principal(f"{NAME}:{publisher.lower()}", speaker.principal.address)
        if not allowed(principal, verb, channel):
            asker, _ = speaker.asker(request)
            if not asker.name.startswith(KEY_PREFIX) or not allowed(asker, verb, channel):
                raise invalid(f"{publisher} is not a publisher on stream {stream}", request.message)

    def _is_new(self, speaker: Speaker, message: StreamMessage, channel: str) -> bool:
        """Whether the place of *message* tells already that it can be no copy."""
        publisher = message.id.publisher_id.lower()
        if not self.positions.beyond(channel, publisher, message.id[2:4]):
            return False
        # Others might have cut an old signed text in a new way, with another place.
        return not is_signed(message) or publisher == speaker.address or is_clear_cut(message)

    def _newest(self, channel: str) -> int:
        newest = next(self._context.services.index.newest(channel), None)
        return 0 if newest is None else newest.timestamp

    def _known(self, speaker: Speaker, message: StreamMessage, ids: Ids) -> bool:
        """Whether *message* was taken before; `Invalid` where its id was, with other content."""
        # Only others have a reason to cut what was signed into other fields: the publisher is looked up once.
        own = speaker.address == message.id.publisher_id.lower()
        _, names = ids
        for name in names[:1] if own else names:
            receipt = self._context.bus.find(name)
            entry = None if receipt is None else self._context.services.index.entry(receipt.seq)
            if isinstance(entry, Message) and entry.protocol == NAME and entry.wire is not None:
                if parse_message(entry.wire).content != message.content:
                    raise invalid(OTHER_CONTENT, message)
                return True
        return False

    def _say_opened(
        self,
        speaker: Speaker,
        message: StreamMessage,
        ids: Ids,
        say: Callable[[StreamMessage], None],
        opened: StreamMessage,
    ) -> None:
        """Publish *message* as it was *opened*; it may have waited for its key, and not been the only copy."""
        if not self._known(speaker, message, ids):
            say(opened)

    def _say(
        self,
        ids: Ids,
        channel: str,
        sender: Peer,
        origin: Session | None,
        control: int,
        message: StreamMessage,
    ) -> None:
        self.positions.reach(channel, message.id.publisher_id.lower(), message.id[2:4])
        sent = as_sent(message, ids, channel, sender, control)
        sent.late = message.id.timestamp < self._context.bus.clock() - LATE_AFTER
        self._context.bus.publish(sent, origin)
