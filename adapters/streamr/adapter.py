"""The Streamr adapter: which connections it accepts, and how it maps channels to streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from adapters.streamr.crypto.background_file import BackgroundFile
from adapters.streamr.crypto.keyring import KEYRING_FILE, read_keys
from adapters.streamr.crypto.keys import DerivedKeys
from adapters.streamr.crypto.signing import CHECKS
from adapters.streamr.model import logouts, message_ids, publishers, stored, streams
from adapters.streamr.model.bridge_signer import BridgeSigner
from adapters.streamr.model.login import Logins
from adapters.streamr.model.publishers import Publishers
from adapters.streamr.model.streams import Streams
from adapters.streamr.publishing.log_checks import flaw, signature_flaw
from adapters.streamr.publishing.synced_messages import take_over
from adapters.streamr.sessions import cluster_group_keys
from adapters.streamr.sessions.link import StreamrLink, StreamrPeer, link
from adapters.streamr.sessions.link_cursors import CURSORS_FILE, LinkCursors, read_cursors
from adapters.streamr.sessions.network_session import PATH as NETWORK
from adapters.streamr.sessions.network_session import NetworkSession, NodeReports
from adapters.streamr.sessions.session import StreamrSession
from adapters.streamr.sessions.tracker_session import PATH as TRACKER
from adapters.streamr.sessions.tracker_session import Tracker, TrackerSession
from adapters.streamr.wire import asyncapi
from adapters.streamr.wire.claims import ASKED
from adapters.streamr.wire.ids import NAME, key_exchange_address, stream_of
from adapters.streamr.wire.versions import UnsupportedVersion, versions_of
from gateway.access.authorization import Access
from gateway.adapter import Adapter, ConnectionRequest, Installation, OutboundLink, Refusal, Services, WireMessage
from gateway.core.histogram import Histogram
from gateway.core.message import Form, Message, Peer, TakingOver
from gateway.core.principal import Principal
from gateway.storage.fact_lifetimes import Lifetime
from gateway.storage.index_schema import Row, Statement
from gateway.storage.record import Fact

from .assembly import assemble
from .capabilities import CARRIES, LIMITS, WIRE_VERSIONS
from .context import Context
from .import_dumps import StreamFiles
from .log_entries import learn, rows
from .message_forms import VERSIONS, WITH_ID
from .settings import StreamrSettings

MAX_HOST = 255  # characters of the Host header that a node sent (RFC 1035, section 2.3.4)


class StreamrAdapter(Adapter):
    """The Streamr control protocol, versions 1 and 2, with messages of versions 30 to 32."""

    name = NAME
    title = "Streamr"
    settings_model = StreamrSettings
    agreed = ("partitions", "streams")
    paths = ("/api/v1/ws", NETWORK, TRACKER)
    principals = "anonymous|peer|0x[0-9a-f]{40}"
    tables = publishers.TABLE + streams.TABLE + stored.TABLE
    tables_by_record = stored.TABLES_BY_RECORD
    versions = WIRE_VERSIONS
    carries = CARRIES
    limits = LIMITS
    file_format = "dump"

    def __init__(self, settings: Any, home: Installation) -> None:
        super().__init__(settings, home)
        self.logouts = logouts.Logouts(logouts.read_logouts(home.secrets / logouts.LOGOUTS_FILE))
        self.logins = Logins(home.secret, self.logouts)
        self.known_keys = read_keys(home.secrets / KEYRING_FILE)  # an unusable file ends the start at once
        self.bridge_signer = BridgeSigner(DerivedKeys(home.secret, home.gateway_id))
        self.publishers = Publishers(self.bridge_signer.address)
        self.streams = Streams(settings.streams, settings.partitions)
        self.nodes = NodeReports()
        self.cursors = LinkCursors(read_cursors(home.secrets / CURSORS_FILE))

    @classmethod
    def load_given_rights(cls, settings: Any, access: Access, rows: Callable[..., list[Any]]) -> None:
        """Give *access* the permissions of streams."""
        Streams(settings.streams, settings.partitions).read(access, rows)

    def start(self, services: Services) -> None:
        """Continue the message chains where the log ends."""
        super().start(services)
        self.bridge_signer.start(services.index, services.bus.peers)
        self.streams.start(services)
        self.publishers.start(services.index)
        self.cursors.keep_only(peer.url for peer in self.settings.peers)
        logouts_file = BackgroundFile(self.home.secrets / logouts.LOGOUTS_FILE, self.logouts.data, services.work_aside)
        cursors_file = BackgroundFile(self.home.secrets / CURSORS_FILE, self.cursors.data, services.work_aside)
        self.logouts.on_change, self.cursors.on_change = logouts_file.save, cursors_file.save
        self.logouts.when_written = logouts_file.when_written
        self._files = (logouts_file, cursors_file)
        self.cursors.tell = self.logouts.tell = partial(services.tell_members, NAME)
        self.tracker = Tracker(services.bus.clock)
        self.context = Context(
            bus=services.bus,
            access=services.access,
            services=services,
            home=self.home,
            streams=self.streams,
            bridge_signer=self.bridge_signer,
            publishers=self.publishers,
            logins=self.logins,
            own=self.bridge_signer.keys.of("gateway", self.home.gateway_id, 0),
            batch_verification=self.settings.batch_verification,
        )
        self.parts = assemble(self.context, self.known_keys)

    def tick(self, now: int) -> None:
        """Do what is due; called once a second. *now* is in ms since 1970."""
        self.parts.participant.tick(now)
        self.parts.publish_handler.tick(now)
        for file in self._files:
            file.tick()

    # Connections

    def accept(self, request: ConnectionRequest) -> StreamrSession | TrackerSession | Refusal:
        """A session in the versions that the client requests; others are refused with the reference's text."""
        if request.path == TRACKER:
            if not self.context.access.has_any_right(request.principal):
                return Refusal(403, "the tracker is only for peers with some right: connect with a key")
            return TrackerSession(self.context, self.tracker, request, self._url(request), self.settings.max_outbox)
        try:
            versions = versions_of(request.query)
        except UnsupportedVersion as error:
            return Refusal(400, str(error))
        about = self.parts, request.principal, versions, self.settings.max_outbox
        if request.path == NETWORK:
            return NetworkSession(*about, nodes=self.nodes, url=self._url(request))
        session = StreamrSession(*about)
        if request.query.get(ASKED) and versions == VERSIONS[WITH_ID]:  # a link of a gateway
            session.form_key = WITH_ID
        return session

    def take_over(self, wire: bytes, needs: Sequence[bytes], channel: str, caller: Principal, who: Peer) -> TakingOver:  # noqa: ARG002
        """Publish a stream message that another gateway has kept, in one step."""
        return take_over(self.bus, self.parts.publish_handler, wire, channel, caller, who)

    def links(self) -> list[OutboundLink]:
        """The links to the brokers that the operator configured."""
        return [link(peer, self._dialled) for peer in self.settings.peers]

    def _dialled(self, principal: Principal, peer: StreamrPeer) -> StreamrLink:
        return StreamrLink(self.parts, principal, peer, self.cursors, self.settings.max_outbox)

    def _url(self, request: ConnectionRequest) -> str:
        """The URL at which nodes reach this gateway."""
        scheme = "wss" if request.secure else "ws"
        return self.settings.url or f"{scheme}://{request.headers.get('host', '')[:MAX_HOST]}{NETWORK}"

    def signature_checks(self) -> Histogram:
        """How long the checks of signatures took, in seconds; each is of one signature, or of a batch."""
        return CHECKS

    def report(self) -> dict[str, Any]:
        """The connected nodes, of the network layer and of the tracker."""
        return {"network": self.nodes.report(), "tracker": self.tracker.report()}

    def wire_messages(self) -> Mapping[str, list[WireMessage]]:
        """The frames of the control layer, of the network layer and of the tracker protocol."""
        return {self.paths[0]: [*asyncapi.control()], NETWORK: [*asyncapi.network()], TRACKER: [*asyncapi.tracker()]}

    def files(self) -> StreamFiles:
        """Files of stream messages that brokers wrote."""
        return StreamFiles(self.parts.publish_handler, self.bus.peers)

    # Names and forms

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:  # noqa: ARG002  (never taken)
        """The channel's own name, which determines the stream and the partition (`ids.stream_of`)."""
        return None if key_exchange_address(channel) is not None else channel

    def channel(self, address: str) -> str | None:
        """The channel called *address*; None for a key-exchange stream, which is not a channel."""
        return None if key_exchange_address(address) is not None else address

    def describe(self, address: str) -> dict[str, Any]:
        """The stream and the partition that *address* means."""
        stream, partition = stream_of(address)
        return {"stream": stream, "partition": partition}

    def names(self, peer: Peer) -> str:
        """The Ethereum address of *peer*: its own, or the one with which the gateway signs on its behalf."""
        if peer.protocol == NAME and peer.identity is not None:
            return peer.identity
        return self.bridge_signer.keys.of(peer.protocol, peer.identity, peer.number).address

    def add_refs(self, run: Sequence[Message]) -> None:
        """Store each message's position in its sender's chain, and note which messages do not fit: see `Forms`."""
        self.parts.forms.add_refs(run)

    def form(self, message: Message, key: str) -> Form:
        """The BroadcastMessage, as a frame: see `Forms.form`."""
        return self.parts.forms.form(message, key)

    # Log and index

    @classmethod
    def flaw(cls, entry: Message | Fact) -> str | None:
        """Check that messages can be parsed and have their ids, and that chain positions are numbers."""
        return flaw(entry)

    @classmethod
    def signature_check(cls) -> Callable[[Message | Fact], str | None]:
        """Check that signed messages are signed by their publishers."""
        return signature_flaw

    def learn(self, entries: Sequence[Message | Fact]) -> None:
        """Note how far each publisher has come, and what users declared about streams."""
        learn(self.context, self.parts.publish_handler.positions, entries)

    def receive_from_member(self, data: bytes) -> None:
        """Take what another gateway sent: a group-key message, a logout, or how far a link that it holds has come."""
        if data.startswith(b'{"logout"'):
            self.logouts.hear(data, self.bus.clock())
        elif data.startswith(b"{"):
            self.cursors.hear(data)
        else:
            cluster_group_keys.hear(self.parts, data)

    def rows(self, entries: Sequence[Message | Fact]) -> Iterable[Row]:
        """The rows that *entries* add to the tables."""
        return rows(self.streams, self.publishers, entries)

    def lifetime(self, fact: Fact) -> Lifetime | None:
        """Keep the newest record of a stream that users described."""
        return self.streams.lifetime(fact)

    def removal_statements(self, fact: Fact) -> Iterable[Statement]:
        """Delete the row of a stream that *fact* describes."""
        return self.streams.removal_statements(fact)

    def pruning_statements(self) -> Iterable[Statement]:
        """Delete the rows of publishers without a stored message."""
        return self.publishers.pruning_statements()

    def resolve_id(self, id: str) -> str | None:
        """The message whose Streamr id is the text *id*, signed by its publisher or by the gateway."""
        return message_ids.resolve_id(id, self.bus, self.services.index, self.bridge_signer, self.publishers)

    def routers(self) -> list[Any]:
        """The REST interface that Streamr clients expect beside the WebSocket."""
        from adapters.streamr.rest.routes import router  # only a process that serves REST imports FastAPI

        return [router(lambda: self.parts)]
