"""What a protocol has to bring: one subclass of `Adapter`, and one line in the registry.

An adapter answers four questions: who may connect (`accept`), what a channel is called (`address`, `channel`), what a
message from elsewhere becomes (`add_refs`, `form`), and how it is found again (`tables`, `rows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from gateway.core.errors import RequestError
from gateway.core.message import Form, Message, Peer, PendingForm, TakingOver
from gateway.core.principal import Principal
from gateway.core.session import Session

if TYPE_CHECKING:
    from gateway.access.authorization import Access
    from gateway.core.answer_scheduler import AnswerScheduler
    from gateway.core.bus import Bus
    from gateway.core.histogram import Histogram
    from gateway.monitoring.metrics import Metrics
    from gateway.storage.fact_lifetimes import Lifetime
    from gateway.storage.index import Index
    from gateway.storage.index_schema import KnownId, Row, Statement
    from gateway.storage.log import Log
    from gateway.storage.record import Entry, Fact


# The operations that a protocol may express: the keys of `Adapter.carries`, and their names in docs/protocols.md.
OPERATIONS: Final = {
    "subscribe": "subscribe",
    "unsubscribe": "unsubscribe",
    "publish": "publish",
    "delivered": "delivered as",
    "direct": "direct",
    "directDelivered": "direct, delivered as",
    "presence": "presence",
    "history": "history",
    "refused": "refused",
    "alive": "liveness",
}
# The keys of `Adapter.limits`.
LIMIT_NAMES: Final = {
    "content": "content of a message",
    "name": "name of a channel",
    "outbox": "waiting for a slow reader",
}


@dataclass(frozen=True, slots=True)
class ConnectionRequest:
    """What a listener knows of a new connection: a WebSocket's handshake, or the address of a TCP client."""

    principal: Principal
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False  # whether it came over TLS


class Refusal(NamedTuple):
    """Why a connection is refused, as an HTTP status and a plain text; TCP is closed without either."""

    status: int
    text: str


class Listener(NamedTuple):
    """A TCP port for an adapter to listen on; *name* is its key in the ready line."""

    name: str
    port: int
    tls: bool = False


class WireMessage(NamedTuple):
    """One kind of message on a wire, for `/asyncapi.json`: *schema* is the JSON Schema (draft 7) of its text.

    *sent* and *received* say what the gateway does with it. A message that is not JSON is a string of *media_type*.
    """

    name: str  # letters, digits, `.`, `-` and `_`
    schema: Mapping[str, Any]
    summary: str = ""
    sent: bool = True
    received: bool = True
    media_type: str = "application/json"


class OutboundLink(NamedTuple):
    """A connection that an adapter wants to have: it is dialled, and dialled again when it ends.

    *open* makes the session of each new connection, *report* describes it for `GET /v1/stats`. *name* is what the
    operator calls it. With *tls*, *verify* false accepts any certificate; *authorities* is a PEM file, by default the
    system's. *path* makes it a WebSocket.
    """

    name: str
    host: str
    port: int
    open: Callable[[], Session]
    report: Callable[[Session], Mapping[str, Any]] = lambda _session: {}
    tls: bool = True
    verify: bool = True
    authorities: Path | None = None
    path: str | None = None

    @property
    def shown(self) -> str:
        """Its name as others may see it: without a query, which may hold a key."""
        return self.name.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Installation:
    """What stays the same across restarts: the folder of secrets (mode 0600), and the gateway's id."""

    secrets: Path
    gateway_id: str
    version: str
    secret: bytes  # 32 random bytes that other keys are derived from


@dataclass(frozen=True, slots=True)
class Services:
    """What a running gateway provides to its adapters.

    *post* runs a callable on the event loop, from any thread. *work* runs one in the worker thread, in order, and
    gives its result to the callback on the loop (None where it raised; that is logged and counted). In a cluster both
    wait until this gateway accepts; *work_aside* is *work* for a callback that logs nothing and does not wait. *fact*
    logs a fact and makes it known. *access* knows the keys, for adapters whose requests can carry one.
    *answer_scheduler* gives long answers their turns. *retention_ms* tells how long messages are kept (ms; None without
    a limit). *handshake_seconds* is how long a new connection may take to send something complete. *tell_members*
    tells the adapters of a protocol at other gateways of the cluster something that may be lost; see
    `Adapter.receive_from_member`.
    """

    bus: Bus
    log: Log
    index: Index
    post: Callable[[Callable[[], None]], None]
    work: Callable[[Callable[[], Any], Callable[[Any], None]], None]
    work_aside: Callable[[Callable[[], Any], Callable[[Any], None]], None]
    fact: Callable[[str, dict[str, Any]], Fact]
    metrics: Metrics
    access: Access
    answer_scheduler: AnswerScheduler
    retention_ms: Callable[[], int | None] = lambda: None
    handshake_seconds: float = 10.0
    tell_members: Callable[[str, bytes], None] = lambda _protocol, _data: None


class TransferFault(NamedTuple):
    """What cannot be imported or exported, a file, a place in it or an id, and the reason."""

    name: str
    reason: str


@dataclass
class TransferReport:
    """How many messages were imported or exported, how many were there already, and everything that is wrong.

    `unkept` are valid messages that are not kept, each with its reason.
    """

    done: int = 0
    known: int = 0
    unkept: list[TransferFault] = field(default_factory=list)
    faults: list[TransferFault] = field(default_factory=list)


class ProtocolFiles(ABC):
    """Files in which other servers of a protocol keep its messages; *settle* waits for the disk and the worker.

    Every message is checked like one that a peer publishes, except for rights: a user who can write to the data
    directory may import.
    """

    @abstractmethod
    def read(self, paths: Sequence[Path], settle: Callable[[], None]) -> TransferReport:
        """Publish what is in *paths*."""

    @abstractmethod
    def publish(self, entries: Iterable[Entry], settle: Callable[[], None]) -> TransferReport:
        """Publish those of *entries* that came in this protocol; they have the form of a log, and never were in one."""

    def write(self, folder: Path, settle: Callable[[], None]) -> TransferReport:
        """Write every message into *folder*."""
        raise NotImplementedError


class Adapter(ABC):
    """One protocol: created from its own settings, started with the services of the gateway."""

    name: ClassVar[str]  # in metrics, records and configuration: "topic_relay"
    title: ClassVar[str]  # for people: "topic relay"
    settings_model: ClassVar[type[Any]]  # a pydantic model; its section of the configuration is called *name*
    paths: ClassVar[tuple[str, ...]] = ()  # of its WebSocket
    tables: ClassVar[str] = ""  # SQL that makes its tables in the index; it may use the view `messages`
    tables_by_record: ClassVar[tuple[str, ...]] = ()  # those whose rows have a `seq` and go with the record
    versions: ClassVar[tuple[str, ...]] = ()  # what it speaks, for `GET /v1/protocols`
    carries: ClassVar[
        Mapping[str, str | None]
    ] = {}  # of `OPERATIONS`: how the protocol expresses it; None if it cannot
    limits: ClassVar[Mapping[str, str]] = {}  # of `LIMIT_NAMES`: how much of it there may be
    agreed: ClassVar[tuple[str, ...]] = ()  # the settings that are the same at all members of a cluster
    agreed_secrets: ClassVar[tuple[str, ...]] = ()  # and the files of secrets
    file_format: ClassVar[str | None] = None  # what `files` reads: "grove", "dump"
    principals: ClassVar[str] = "anonymous"  # a regular expression: what may follow its name in `auth.grants`

    def __init__(self, settings: Any, home: Installation) -> None:
        self.settings = settings
        self.home = home

    @classmethod
    def load_given_rights(cls, settings: Any, access: Access, rows: Callable[..., list[Any]]) -> None:
        """Add the rights that users gave each other to *access*; *rows* runs a query on the adapter's tables."""

    def start(self, services: Services) -> None:
        """Start, once the log has been read and before the listeners open."""
        self.services = services
        self.bus = services.bus

    def tick(self, now: int) -> None:
        """Do what is due; called once a second, in a cluster while this gateway accepts.

        *now* is the bus's clock in ms. Sessions have a `tick` of their own.
        """

    @abstractmethod
    def accept(self, request: ConnectionRequest) -> Session | Refusal:
        """A session for this connection, or why it is refused."""

    @abstractmethod
    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        """What this protocol calls *channel*, where that follows from the name (see `gateway.core.channels`)."""

    @abstractmethod
    def channel(self, address: str) -> str | None:
        """The channel that *address* names by rule."""

    @classmethod
    def may_be_pinned(cls, address: str) -> bool:  # noqa: ARG003  (mostly the name decides)
        """Whether the operator may say that a channel is called *address* here."""
        return False

    @abstractmethod
    def add_refs(self, run: Sequence[Message]) -> None:
        """Note what the form of each message of a *run* from elsewhere depends on: see `contracts.Translator`."""

    def resolve_id(self, id: str) -> str | None:  # noqa: ARG002  (mostly the log has all ids that there are)
        """The canonical id of the message that is called *id* here: see `contracts.Translator`."""
        return None

    @abstractmethod
    def form(self, message: Message, key: str) -> Form:
        """The *message* of any protocol, live or from the log, in this protocol's form called *key*."""

    def channel_registered(self, channel: str) -> None:
        """Prepare for *channel*, which was created or got another address."""

    def preparing(self, channel: str) -> PendingForm | None:  # noqa: ARG002  (most addresses follow from the name)
        """Return the pending address of the existing *channel*, retried if it failed; None if nothing is pending."""
        return None

    def describe(self, address: str) -> dict[str, Any]:
        """The parts of *address* by the names that people know them by, for `GET /v1/channels`."""
        return {self.name: address}

    def names(self, peer: Peer) -> Any:  # noqa: ARG002  (most have no word for others)
        """What *peer* is called here, for `GET /v1/peers/{number}`; None if it has no name, or none yet."""
        return None

    def learn(self, entries: Sequence[Message | Fact]) -> None:
        """Note *entries* that another gateway submitted and that were just logged, as if this one had."""

    def receive_from_member(self, data: bytes) -> None:
        """Take *data* that this adapter sent at another member of the cluster; raises `RequestError` if it is bad."""
        raise RequestError(f"{self.name} sends nothing to members, but {len(data)} bytes came")

    def rows(self, entries: Sequence[Message | Fact]) -> Iterable[Row | KnownId]:  # noqa: ARG002  (mostly nothing)
        """The rows that *entries* add to this adapter's tables, and further ids by which records are found."""
        return ()

    def lifetime(self, fact: Fact) -> Lifetime | None:  # noqa: ARG002  (most log no entities)
        """How long *fact*, an `entity`, stays once the messages around it are retired; None if it is another's.

        See `gateway.storage.fact_lifetimes`. A fact that nothing references is dropped, unless it is `in_use`.
        """
        return None

    def references(self, entry: Message | Fact) -> Iterable[str]:  # noqa: ARG002  (by default nothing)
        """The facts without which *entry* cannot be understood, by the names in `Lifetime.referenced_as`."""
        return ()

    def removal_statements(self, fact: Fact) -> Iterable[Statement]:  # noqa: ARG002  (most have no tables of facts)
        """Statements that delete what *fact* added to the tables, except the rows that are deleted with its record."""
        return ()

    def pruning_statements(self) -> Iterable[Statement]:
        """Statements that delete rows that no message supports any more, once messages have been deleted.

        It is called in the index's thread.
        """
        return ()

    def in_use(self, fact: Fact) -> bool:  # noqa: ARG002  (nothing is remembered by default)
        """Whether a connected peer needs *fact*, an `entity` that is to leave the log."""
        return False

    def forget(self, fact: Fact) -> None:
        """Remove *fact*, an `entity` that leaves the log, from memory; if it is needed again, it is logged again."""

    @classmethod
    def flaw(cls, entry: Message | Fact) -> str | None:  # noqa: ARG003  (the default finds none)
        """Why the members of this protocol in *entry*, read from a log, are not valid; None if they are.

        Anybody may have changed a log, with good checksums. An entry with a flaw is skipped and reported, so nothing
        else has to check. Addresses are checked in `channel` facts.
        """
        return None

    @classmethod
    def signature_check(cls) -> Callable[[Message | Fact], str | None]:
        """Make a check of signatures for the entries of one log, in order; it returns what is wrong, or None."""
        return lambda _entry: None

    @classmethod
    def commands(cls) -> Mapping[str, Any]:
        """The subcommands that it adds to `trellis`: typer applications by name."""
        return {}

    def needed_by(self, message: Message) -> Iterable[bytes]:  # noqa: ARG002  (mostly a message can be checked alone)
        """What another gateway needs before it can check the `wire` of *message*, which came in this protocol.

        This does not include other messages: they are handed over by themselves.
        """
        return ()

    def take_over(self, wire: bytes, needs: Sequence[bytes], channel: str, caller: Principal, who: Peer) -> TakingOver:  # noqa: ARG002
        """Publish *wire*, which another gateway has kept of a message that came to it in this protocol.

        *needs* is the result of `needed_by` there. An unsigned message is attributed to *caller*, shown as *who*.
        It is done in steps of a few milliseconds, between which the loop serves others. Return whether the message was
        new. Raises `Incomplete` if other messages have to come first, and
        `RequestError` if it is not valid, is not for *channel*, or if the protocol transfers messages only over links.
        """
        raise RequestError(f"{self.title} messages are exchanged only over links")

    def files(self) -> ProtocolFiles:
        """The files that it can read, and perhaps write, if it has a `file_format`."""
        raise NotImplementedError

    def listeners(self) -> list[Listener]:
        """The TCP ports that it listens on."""
        return []

    def wire_messages(self) -> Mapping[str, list[WireMessage]]:
        """The messages on each of its paths and listeners, by path or by the listener's name."""
        return {}

    def links(self) -> list[OutboundLink]:
        """The outgoing connections that it needs, once it is started."""
        return []

    def report(self) -> Mapping[str, Any]:
        """Its statistics for operators, for `GET /v1/stats`."""
        return {}

    def signature_checks(self) -> Histogram | None:
        """How long its checks of signatures took, in seconds; None if its protocol has no signatures."""
        return None

    def routers(self) -> list[Any]:
        """FastAPI routers of its own."""
        return []
