"""The Sprout adapter: its ports and settings, and how the gateway finds and makes Arbor's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from adapters.sprout.forest.forest import is_node_id
from adapters.sprout.forest.node_rules import CHECKS
from adapters.sprout.mint.keyfile import KEY_FILE, make_key, read_key
from adapters.sprout.mint.mint import PEER_PREFIX
from adapters.sprout.sessions.peering import link
from adapters.sprout.sessions.session import SproutSession
from adapters.sprout.store.learning import learn
from adapters.sprout.store.tables import NAME, TABLES, TABLES_BY_RECORD, rows
from adapters.sprout.wire.asyncapi import messages
from gateway.adapter import Adapter, ConnectionRequest, Installation, Listener, OutboundLink, Services, WireMessage
from gateway.core.errors import Unavailable
from gateway.core.histogram import Histogram
from gateway.core.message import LATE_AFTER, REST, Form, Message, Peer, PendingForm, TakingOver
from gateway.core.principal import Principal
from gateway.storage.fact_lifetimes import Lifetime
from gateway.storage.index_schema import KnownId, Row, Statement
from gateway.storage.record import Entry, Fact

from .assembly import assemble
from .capabilities import CARRIES, LIMITS
from .grove import Groves
from .log_checks import SignatureVerifier, flaw
from .node_lifetimes import lifetime, references, removal_statements
from .settings import SproutSettings
from .synced_nodes import HandoverSession, nodes_above, take_over

TITLES = {REST: "REST"}  # of protocols that have no adapter


class SproutAdapter(Adapter):
    """Nodes of the Arbor forest, in lines over TCP or TLS."""

    name = NAME
    title = "Arbor"
    settings_model = SproutSettings
    agreed = ("direct", "gateways", "identify", "presence")
    agreed_secrets = (KEY_FILE,)
    principals = "anonymous|peer|SHA512_B32__[A-Za-z0-9_-]+"
    tables = TABLES
    tables_by_record = TABLES_BY_RECORD
    versions = ("0.0",)
    carries = CARRIES
    limits = LIMITS
    file_format = "grove"

    def __init__(self, settings: Any, home: Installation) -> None:
        super().__init__(settings, home)
        self._key = read_key(home.secrets / KEY_FILE)  # fails before anything starts

    def start(self, services: Services) -> None:
        """Make a key if there is none; then make a community for every channel that exists."""
        super().start(services)
        bus = self.bus
        key = self._key or make_key(self.home.secrets / KEY_FILE, bus.clock())
        titles = TITLES | {each.name: getattr(each, "title", each.name) for each in bus.translators}
        name = f"Trellis {self.home.gateway_id}"
        assembly = assemble(services, self.settings, key, name, titles)
        self.mint, self.signer, self._horizon, self._elsewhere, self.parts = assembly
        for channel in bus.channels.registered():
            self.channel_registered(channel)

    def tick(self, now: int) -> None:
        """Announce changes of presence and signed nodes, and note what retention has removed; called once a second."""
        with suppress(Unavailable):
            self._horizon.kept_since = self.services.index.kept_since(now) - LATE_AFTER  # authors' clocks may be slow
        self.parts.nodes.store.refresh()
        self._elsewhere.tick()
        self.parts.presence.tick(now)
        self.parts.delivery.tick()

    def accept(self, request: ConnectionRequest) -> SproutSession:
        """Open a session for a connection; none is refused."""
        return self.open(SproutSession, request.principal)

    def receive_from_member(self, data: bytes) -> None:
        """Take the presence that an author announced at another gateway."""
        self._elsewhere.hear(data)

    def signature_checks(self) -> Histogram:
        """How long the checks of nodes' signatures took, in seconds."""
        return CHECKS

    def links(self) -> list[OutboundLink]:
        """The links to the relays that the operator configured."""
        tls = {"verify": not self.settings.insecure, "authorities": self.settings.authorities}
        return [link(peer, self.open, self.services.post, **tls) for peer in self.settings.peers]

    def open(self, kind: type[SproutSession], principal: Principal) -> SproutSession:
        """Open a session of that *kind* for *principal*."""
        refused = partial(self.services.metrics.refused, NAME)
        session = kind(self.bus, principal, self.parts, refused)
        session.handshake = self.services.handshake_seconds
        self.parts.audience.sessions[session] = None
        return session

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:  # noqa: ARG002
        """None: a community is minted or comes from Arbor, and does not follow from a name."""
        return None

    def channel(self, address: str) -> str | None:  # noqa: ARG002
        """None: no channel follows from an address."""
        return None

    @classmethod
    def may_be_pinned(cls, address: str) -> bool:
        """Whether *address* is written as a node id; the community need not be known."""
        return is_node_id(address)

    def channel_registered(self, channel: str) -> None:
        """Let subscribers of the channel's community join; mint a community if the channel has none."""
        community = self.bus.channels.address(NAME, channel)
        if community is None:
            self.mint.community(channel)
        else:
            self.parts.audience.community_added(community)

    def preparing(self, channel: str) -> PendingForm | None:
        """The community of *channel* while it is being signed; None once it has one."""
        founded = self.bus.channels.address(NAME, channel) is not None
        return None if founded else self.mint.community(channel).line

    def describe(self, address: str) -> dict[str, Any]:
        """The id of the community."""
        return {"community": address}

    def names(self, peer: Peer) -> str | None:
        """The node id of the peer's identity, its own or the one that the gateway minted for it."""
        return peer.identity if peer.protocol == NAME else self.mint.identity_of(peer.number)

    def add_refs(self, run: Sequence[Message]) -> None:
        """Record where the messages stand in the forest."""
        self.signer.add_refs(run)

    def resolve_id(self, id: str) -> str | None:
        """The id of the message of which the node *id* is a copy, made by another gateway; None if it is no copy."""
        seq = self.parts.nodes.store.seq(id)
        copy = None if seq is None else self.parts.nodes.store.entry(seq)
        return copy.fields.get("copy") if isinstance(copy, Fact) else None

    def form(self, message: Message, key: str) -> Form:
        """The line of the message's node."""
        return self.parts.nodes.form(message, key)

    def rows(self, entries: Sequence[Entry]) -> Iterable[Row | KnownId]:
        """The rows that *entries* add to the tables, and the ids of nodes."""
        return rows(entries)

    def learn(self, entries: Sequence[Entry]) -> None:
        """Note the nodes in *entries*, and which messages were offered as which nodes."""
        for entry in entries:
            if entry.protocol == NAME:
                learn(self.parts.nodes.store, entry)
            if isinstance(entry, Fact) and entry.protocol == NAME and entry.kind == "form":
                self.signer.offered(entry.fields["of"])
            elif isinstance(entry, Fact) and entry.kind == "channel" and NAME in entry.fields["addresses"]:
                self.parts.audience.community_added(entry.fields["addresses"][NAME])

    @classmethod
    def flaw(cls, entry: Entry) -> str | None:
        """Why *entry* is not well formed, by Arbor's rules for nodes, ids and references; None if it is."""
        return flaw(entry)

    def lifetime(self, fact: Fact) -> Lifetime | None:
        """A node stays as long as something that is kept stands below it or is signed by its owner."""
        return lifetime(fact)

    def references(self, entry: Entry) -> Iterable[str]:
        """The nodes that *entry* stands below, and its author's identity."""
        return references(entry)

    def removal_statements(self, fact: Fact) -> Iterable[Statement]:
        """Statements that delete the rows of a node."""
        return removal_statements(fact)

    def in_use(self, fact: Fact) -> bool:
        """Whether *fact* is the identity of a peer that is connected."""
        what, id = fact.fields.get("what") or "", fact.fields["native"][NAME]
        if what.startswith(PEER_PREFIX):
            return self.bus.connection_count(int(what.removeprefix(PEER_PREFIX))) > 0
        peer = self.bus.peers.find(NAME, id)
        return peer is not None and self.bus.connection_count(peer.number) > 0

    def forget(self, fact: Fact) -> None:
        """Drop the node from all caches; it is requested or minted again when it is needed."""
        what = fact.fields.get("what") or ""
        self.parts.nodes.forget(fact.fields["native"][NAME], fact.seq, what)
        self.mint.forget(what)

    @classmethod
    def signature_check(cls) -> Callable[[Entry], str | None]:
        """Make a verifier of ids and signatures for the entries of one log."""
        return SignatureVerifier()

    @classmethod
    def commands(cls) -> Mapping[str, Any]:
        """The commands `identity` and `community`."""
        from .commands import community, identity  # not needed by a running gateway

        return {"identity": identity, "community": community}

    def wire_messages(self) -> Mapping[str, list[WireMessage]]:
        """The verbs, over TCP and over TLS."""
        return {listener.name: [*messages()] for listener in self.listeners()}

    def needed_by(self, message: Message) -> Iterable[bytes]:
        """The nodes that the node of *message* cannot be checked without, other messages left out."""
        return nodes_above(self.parts.nodes, message)

    def take_over(self, wire: bytes, needs: Sequence[bytes], channel: str, caller: Principal, who: Peer) -> TakingOver:  # noqa: ARG002
        """Take the node *wire* of another gateway as the same node; return whether it was new."""
        session = self.open(HandoverSession, caller)
        session.link = True  # it carries nodes of many authors
        try:
            return (yield from take_over(self.parts.nodes, self.parts.intake, session, wire, needs, channel))
        finally:
            session.receive_eof()

    def files(self) -> Groves:
        """Groves, directories of the reference relay."""
        log, index = self.services.log, self.services.index
        return Groves(partial(self.open, SproutSession), self.parts.nodes, self.parts.intake, log, index)

    def listeners(self) -> list[Listener]:
        """TCP, and TLS where there is a certificate."""
        return [Listener(NAME, self.settings.port), Listener(f"{NAME}_tls", self.settings.tls_port, tls=True)]
