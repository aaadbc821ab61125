"""Streamr's place in the gateway: who may connect, what a channel is called, what is found again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from adapters.streamr.crypto.keyring import FILE, read_keys
from adapters.streamr.crypto.keys import DerivedKeys, Signer
from adapters.streamr.crypto.saved import SavedFile
from adapters.streamr.model import logouts, named, publishers, stored, streams
from adapters.streamr.model.author import Author, Link, is_late
from adapters.streamr.model.login import Logins
from adapters.streamr.model.logouts import Logouts, read_logouts
from adapters.streamr.model.publishers import Publishers
from adapters.streamr.model.stored import Place, Stored
from adapters.streamr.model.streams import MAX_PARTITIONS, Rules, Streams, StreamSettings
from adapters.streamr.model.users import User
from adapters.streamr.publishing.exchange import KeyExchange
from adapters.streamr.publishing.participant import Participant
from adapters.streamr.publishing.publishing import flaw, unproven
from adapters.streamr.publishing.saying import Saying
from adapters.streamr.sessions.network_session import PATH as NETWORK
from adapters.streamr.sessions.network_session import NetworkSession, Nodes
from adapters.streamr.sessions.session import StreamrSession
from adapters.streamr.sessions.tracker_session import PATH as TRACKER
from adapters.streamr.sessions.tracker_session import Tracker, TrackerSession
from adapters.streamr.wire import spoken
from adapters.streamr.wire.codec import FORMS, encode_broadcast
from adapters.streamr.wire.control import CONTROL
from adapters.streamr.wire.ids import NAME, channel_of, inbox_of, key_exchange_address, stream_of
from adapters.streamr.wire.message import LATEST, ROWS, StreamMessage, has_expired, parse_message
from adapters.streamr.wire.refusals import Unauthenticated
from gateway.access.auth import Access
from gateway.adapter import Adapter, Home, Refusal, Request, Services, Spoken
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Form, Message, Peer, Pending
from gateway.core.outbox import MAX_OUTBOX
from gateway.core.principal import Principal
from gateway.storage.facts import Life
from gateway.storage.index import Statement
from gateway.storage.record import Fact
from gateway.storage.tables import Row

UTF16_VERSION = 31  # of messages: only clients before 4.0 ask for it
MAX_CONTENT = (1 << 20) - 4096  # bytes of a content as JSON string: a frame is at most what the broker's would be
MAX_HOST = 255  # characters of what a node called the gateway by (RFC 1035, section 2.3.4)
_INTEGER = re.compile(r"\s*([+-]?[0-9]+)")

# The versions that a client may ask for in the URL: the parameter, how the reference calls it, which there are.
VERSIONS = (
    ("controlLayerVersion", "ControlLayer", tuple(map(str, CONTROL))),
    ("messageLayerVersion", "MessageLayer", tuple(map(str, ROWS))),
)

# The versions that a form is for: of the control frame and of the message.
PAIRS = {key: versions for versions, key in FORMS.items()}
# The keys of the signed array of a foreign message; clients that read version 31 check signatures in their own way.
SEALED, SEALED_UTF16 = f"{NAME}/row", f"{NAME}/row/utf16"


class Settings(BaseModel):
    """The section `streamr` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    partitions: int = Field(
        1, ge=1, le=MAX_PARTITIONS, description="Partitions of a stream that `streams` does not name."
    )
    streams: dict[str, StreamSettings] = Field({}, description="What the operator says of streams.")
    url: str | None = Field(None, description="Where other nodes reach `/network`; else what a node calls it.")
    max_outbox: int = Field(MAX_OUTBOX, ge=1 << 16, description="Bytes that may wait for a client that reads slowly.")


class StreamrAdapter(Adapter):
    """The Streamr control protocol, versions 1 and 2, with messages of versions 30 to 32."""

    name = NAME
    title = "Streamr"
    settings = Settings
    paths = ("/api/v1/ws", NETWORK, TRACKER)
    principals = "anonymous|0x[0-9a-f]{40}"
    tables = publishers.TABLE + streams.TABLE + stored.TABLE
    versions = (
        *("control 1", "control 2", "message 30", "message 31", "message 32"),
        *("network 4.4.3", "tracker 1", "tracker 2"),
    )
    carries = MappingProxyType(
        {
            "subscribe": "SubscribeRequest: SubscribeResponse",
            "unsubscribe": "UnsubscribeRequest: UnsubscribeResponse",
            "publish": "PublishRequest: silence",
            "delivered": "BroadcastMessage",
            "direct": "PublishRequest to `STREAM/@PEER`: silence",
            "directDelivered": "BroadcastMessage on `STREAM/@PEER`",
            "presence": None,
            "history": "a resend: last, from or range",
            "refused": "ErrorResponse",
            "alive": "the WebSocket's ping",
        }
    )
    limits = MappingProxyType(
        {
            "content": f"{MAX_CONTENT:,} bytes as a JSON string",
            "name": "that of a channel",
            "outbox": f"{MAX_OUTBOX:,} bytes",
        }
    )

    def __init__(self, settings: Any, home: Home) -> None:
        super().__init__(settings, home)
        self.logouts = Logouts(read_logouts(home.secrets / logouts.FILE))
        self.logins = Logins(home.secret, self.logouts)
        self.known_keys = read_keys(home.secrets / FILE)  # what is of no use ends the start before anything begins
        self.author = Author(DerivedKeys(home.secret, home.gateway_id))
        self.publishers = Publishers(self.author.address)
        self._demands = lru_cache(maxsize=4096)(self._find_demands)
        self.nodes = Nodes()
        self.saying = Saying(self)
        self.streams = Streams(settings.streams, settings.partitions, self._demands.cache_clear)

    @classmethod
    def give(cls, settings: Any, access: Access, rows: Callable[..., list[Any]]) -> None:
        """Let *access* know the permissions of streams."""
        Streams(settings.streams, settings.partitions, lambda: None).read(access, rows)

    def start(self, services: Services) -> None:
        """Continue the chains where the log ended."""
        super().start(services)
        self.started = services.bus.clock()
        self.author.find = self._head
        self.saying.tick(self.started)
        self.streams.start(services)
        self.publishers.start(services.index)
        self.logouts.changed = SavedFile(self.home.secrets / logouts.FILE, self.logouts.data, services.work).save
        self.tracker = Tracker(services.bus.clock)
        self.participant = Participant(self, services)
        self.exchange = KeyExchange(self.frame, self.participant.hear)
        self.stored = Stored(services.index, self.place, self._next_seq)

    def tick(self, now: int) -> None:
        """A second has passed."""
        self.participant.tick(now)
        self.saying.tick(now)

    # Who comes

    def accept(self, request: Request) -> StreamrSession | TrackerSession | Refusal:
        """A session in the versions the client asks for; the reference's words where there are no such ones."""
        if request.path == TRACKER:
            if not self.services.access.known(request.principal):
                return Refusal(403, "a tracker is for those who may do something here: connect with a key")
            return TrackerSession(self, self.tracker, request, self._url(request), self.options.max_outbox)
        asked: list[int | None] = []
        for parameter, layer, supported in VERSIONS:
            text = request.query.get(parameter)
            version = _parse_int(text) if text else None
            if version is not None and version not in supported:
                return Refusal(400, _unsupported(version, layer, supported))
            asked.append(int(version) if version is not None else None)
        about = self, request.principal, (asked[0], asked[1]), self.options.max_outbox
        if request.path == NETWORK:
            return NetworkSession(*about, nodes=self.nodes, url=self._url(request))
        return StreamrSession(*about)

    def _url(self, request: Request) -> str:
        """Where nodes reach this gateway."""
        scheme = "wss" if request.secure else "ws"
        return self.options.url or f"{scheme}://{request.headers.get('host', '')[:MAX_HOST]}{NETWORK}"

    def report(self) -> dict[str, Any]:
        """The nodes that are connected."""
        return {"network": self.nodes.report(), "tracker": self.tracker.report()}

    def user(self, token: str, network: str = "") -> User | None:
        """Whose session token or API key *token* is, who asks from *network*; None if it is none, or over."""
        if (address := self.logins.address(token, self.bus.clock())) is not None:
            return User(Principal(f"{NAME}:{address}", network), address)
        holder = self.services.access.holder(token, network)
        return None if holder is None else User(holder)

    def asker(self, tokens: Iterable[str | None], principal: Principal) -> User:
        """Who the first valid one of *tokens* belongs to.

        Whoever *principal* is where there is none, or authentication is off; else `Unauthenticated`.
        """
        given = [token for token in tokens if token]
        for token in given:
            if (user := self.user(token, principal.address)) is not None:
                return user
        if given and self.services.access.enabled:
            raise Unauthenticated("no such session token or API key")
        return User(principal)

    def publishes(self, stream: str, address: str) -> bool:
        """Whether messages of *address* (lower case) on *stream* are to be believed: asked by readers."""
        channels = self.channels_of(stream)
        principal = Principal(f"{NAME}:{address}")
        return (
            any(self.bus.allowed(principal, "publish", channel) for channel in channels)
            or any(self.author.speaks(channel, address) for channel in channels)
            or self.publishers.published(stream, address)
        )

    def may_read(self, stream: str, address: str) -> bool:
        """Whether *address* (lower case) may have what is said on *stream*: asked by who has a key for it."""
        if address == self.participant.address and self.streams.decrypts(stream):
            return True
        principal = Principal(f"{NAME}:{address}")
        return any(self.bus.allowed(principal, "subscribe", channel) for channel in self.channels_of(stream))

    def signer(self, stream: str, address: str) -> Signer | None:
        """Who of those that the gateway speaks for on *stream* has *address* (lower case)."""
        for channel in self.channels_of(stream):
            if (signer := self.author.speaks(channel, address)) is not None:
                return signer
        found = self.publishers.foreigner(address)
        return None if found is None else self.author.keys.of(*found)

    def authors(self, address: str) -> bool:
        """Whether *address* (lower case) is one that the gateway signs by, for itself or for others."""
        own = address == self.participant.address or self.author.signs(address)
        return own or self.publishers.foreigner(address) is not None

    def rotate(self, message: StreamMessage, channel: str) -> None:
        """Hand a GroupKeyRotate to the Streamr clients that hear *channel*, and to nobody else."""
        self.participant.learn(message)
        sessions = (session for session in self.bus.sessions() if isinstance(session, StreamrSession))
        self.exchange.hand(message, (session for session in sessions if session.hears(channel)))

    def spoken(self) -> Mapping[str, list[Spoken]]:
        """The frames of the control layer, of the network layer and of the tracker protocol."""
        return {self.paths[0]: [*spoken.control()], NETWORK: [*spoken.network()], TRACKER: [*spoken.tracker()]}

    # What things are called

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:  # noqa: ARG002  (never taken)
        """The channel's own name: which stream and partition it is follows from that (`ids.stream_of`)."""
        return None if key_exchange_address(channel) is not None else channel

    def channel(self, address: str) -> str | None:
        """The channel called *address*; the key exchange is none."""
        return None if key_exchange_address(address) is not None else address

    def describe(self, address: str) -> dict[str, Any]:
        """The stream and the partition."""
        stream, partition = stream_of(address)
        return {"stream": stream, "partition": partition}

    def names(self, peer: Peer) -> str:
        """Its address: its own, or the one that the gateway signs by for it."""
        if peer.protocol == NAME and peer.identity is not None:
            return peer.identity
        return self.author.keys.of(peer.protocol, peer.identity, peer.number).address

    def partitions(self, stream: str) -> int:
        """How many partitions *stream* has; inboxes and key exchanges have one."""
        return self.streams.rules(stream).partitions

    def channels_of(self, stream: str) -> list[str]:
        """The channels of the partitions of *stream*; of an inbox, the channel it is in."""
        inbox = inbox_of(stream)
        return (
            [inbox.stream_id] if inbox is not None else [channel_of(stream, p) for p in range(self.partitions(stream))]
        )

    # What messages become

    def refer(self, run: Sequence[Message]) -> None:
        """Note the places in their sender's chain, and what has none."""
        rules = self._demands(run[0].channel)
        encrypt = rules is not None and rules.require_encrypted_data
        fit = [m for m in run if 2 * len(m.content) <= MAX_CONTENT or _has_room(m.content, encrypt)] if rules else []
        if fit:
            self.author.refer(fit, encrypt=encrypt)
        if len(fit) < len(run):
            for message in run:
                if message not in fit:
                    message.undelivered += (NAME,)

    def _find_demands(self, channel: str) -> Rules | None:
        """The rules of the stream partition that *channel* is; None if there is none such."""
        stream, partition = stream_of(channel)
        rules = self.streams.rules(stream)
        return rules if partition < rules.partitions and key_exchange_address(stream) is None else None

    def form(self, message: Message, key: str) -> Form:
        """The BroadcastMessage, as a frame; *key* is of `PAIRS`, for a direct message with the inbox behind it."""
        pair, _, inbox = key.partition("/@")
        found = self.author.seal_direct(message, inbox) if inbox and not _is_native(message) else None
        found = found or self.stream_message(message, PAIRS[pair][1])
        return (found and self.frame(found, pair)) or Pending.nothing()

    def fits(self, message: Message, key: str) -> bool:
        """Whether a client with the versions of *key* can be shown a direct *message*; it has no id yet."""
        if _is_native(message):
            return parse_message(message.wire or b"").survives(PAIRS[key][1])
        return _has_room(message.content, encrypt=False)

    def stream_message(self, message: Message, version: int = LATEST) -> StreamMessage | None:
        """What a *message* is in Streamr, live or out of the log; None if it has no form here.

        What comes from elsewhere is signed for readers of *version*; `StreamMessage.row` writes it.
        """
        if _is_native(message):
            return parse_message(message.wire or b"")
        if NAME not in message.refs:
            return None
        row = message.form(SEALED_UTF16 if version == UTF16_VERSION else SEALED, self._seal)
        assert isinstance(row, bytes)
        return parse_message(row)

    def frame(self, message: StreamMessage, key: str) -> bytes | None:
        """*message* for a client with the versions of *key*; None where those cannot show all of it."""
        control, version = PAIRS[key]
        return text_frame(encode_broadcast(control, message.row(version))) if message.survives(version) else None

    def stored_row(self, message: Message, version: int) -> bytes | None:
        """The array of a *message* out of the log in *version*; None where that cannot show all of it."""
        found = self.stream_message(message, version)
        return found.row(version) if found is not None and found.survives(version) else None

    def shows(self, version: int, message: Message) -> bool:
        """Whether `stored_row` has something for *version*; without signing anything."""
        if self.place(message) is None:
            return False
        if _is_native(message):
            return parse_message(message.wire or b"").survives(version)
        return version != 30 or len(message.refs[NAME]) < len(Link._fields)  # those of all fields are encrypted

    def _seal(self, message: Message, key: str) -> bytes:
        utf16 = key == SEALED_UTF16 and not message.content.isascii()
        return self.author.seal(message, utf16=utf16).row(LATEST)

    # What is found again

    @classmethod
    def flaw(cls, entry: Message | Fact) -> str | None:
        """Messages are messages and have their ids, and places in a chain are numbers."""
        return flaw(entry)

    @classmethod
    def proof(cls) -> Callable[[Message | Fact], str | None]:
        """Messages that are signed are signed by their publishers."""
        return unproven

    def rows(self, entries: Sequence[Message | Fact]) -> Iterable[Row]:
        """Who publishes on which stream, once; and which messages do not stand where their time says."""
        for entry in entries:
            if not isinstance(entry, Message):
                yield from self.streams.rows(entry)
            elif entry.protocol != NAME or entry.native is None:
                link = entry.refs.get(NAME)
                if link is None or link[0] != entry.timestamp:  # seldom
                    yield stored.row(entry, link)
        yield from self.publishers.rows(entries)

    def life(self, fact: Fact) -> Life | None:
        """The newest edition of what users say of a stream stays."""
        return self.streams.life(fact)

    def undo(self, fact: Fact) -> Iterable[Statement]:
        """The row of a stream of which nothing is said any more."""
        return self.streams.undo(fact)

    def pruned(self) -> Iterable[Statement]:
        """The rows of publishers of whom nothing is kept."""
        return self.publishers.pruned()

    def place(self, message: Message) -> Place | None:
        """Where *message* stands in its stream partition; None if it has no form here, or had its time (S1, ttl)."""
        if message.protocol == NAME and message.native is not None:
            _, _, timestamp, sequence, publisher, chain = message.native[NAME]
            if message.wire is not None and has_expired(message.wire, self.bus.clock()):
                return None
            return Place(timestamp, sequence, publisher, chain)
        return self.author.place(message) if NAME in message.refs else None

    def named(self, id: str) -> str | None:
        """The message whose Streamr id the text *id* is: one that its publisher signed, or one from elsewhere."""
        if (found := named.read_id(id)) is None:
            return None
        signed = self.bus.known(dumps(list(found)).decode())
        if signed is not None:
            return signed.id
        shown = named.find(found, self.services.index, self.author.place, self.publishers.number)
        return None if shown is None else shown.id

    def routers(self) -> list[Any]:
        """The REST interface that clients expect beside the WebSocket."""
        from adapters.streamr.rest.rest import router  # FastAPI is for those who serve it

        return [router(self)]

    def _next_seq(self) -> int:
        return self.bus.ledger.next_seq

    def _head(self, message: Message) -> tuple[int, int] | None:
        """Where the chain of *message* ends, by the newest of its sender's messages in the log."""
        newest = self.services.index.history(message.channel, sender=message.sender.number, newest_first=True)
        for former in newest:
            link = former.refs.get(NAME)
            ours = former.protocol == message.protocol and former.sender.protocol == message.sender.protocol
            if link is not None and ours and not is_late(former):
                return link[0], link[1]
        return None


def _is_native(message: Message) -> bool:
    return message.protocol == NAME and message.wire is not None


def _parse_int(text: str) -> str:
    """The digits that JavaScript's `parseInt` would read."""
    found = _INTEGER.match(text)
    return str(int(found[1][:20])) if found else "NaN"


def _unsupported(version: str, layer: str, supported: Iterable[str]) -> str:
    listed = f"Supported {layer} versions: [{','.join(supported)}]. Are you using an outdated library?"
    return f"Unsupported version: {version}, message: {listed}"


def _has_room(content: bytes, encrypt: bool) -> bool:
    return 2 * len(content) <= MAX_CONTENT or not (encrypt or len(_quoted(content)) > MAX_CONTENT)


def _quoted(content: bytes) -> bytes:
    return dumps(content.decode())
