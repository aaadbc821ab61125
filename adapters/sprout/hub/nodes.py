"""The nodes that are held: their positions, their contents, and the lines that are offered to Arbor."""

from __future__ import annotations

from adapters.sprout.forest.forest import Node, decode
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.store.direct_messages import DirectMessages
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.node_cache import CachedNode, NodeCache
from adapters.sprout.store.peek import expiration_of
from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import NAME, NodeInfo
from gateway.core.bus import Bus
from gateway.core.contracts import Receipt
from gateway.core.errors import RequestError
from gateway.core.message import Form, Message, PendingForm
from gateway.storage.record import Entry, Fact, decode_base64url

from .naming import find_channel


class NodeDirectory:
    """Finds nodes in *store* and *directs*; *signer* makes those of other protocols' messages."""

    def __init__(self, bus: Bus, store: Store, directs: DirectMessages, lineage: Lineage, signer: ReplySigner) -> None:
        self.store = store
        self.directs = directs
        self.lineage = lineage
        self._bus = bus
        self._signer = signer
        self._cache = NodeCache()

    def channel(self, community: str) -> str | None:
        """The channel of the community with this id, or the one that it is an alias of; None if there is neither."""
        return find_channel(community, self._bus.channels, self.store)

    def info(self, id: str) -> NodeInfo | None:
        """What is known of the node *id* without reading it; None if it is not held."""
        seq = self.store.seq(id)
        return None if seq is None else self.store.info(seq)

    def node(self, id: str) -> Node | None:
        """The node *id*, also of a direct message; the nodes of other protocols come without a signature."""
        held = self.find(id)
        return None if held is None else held.node

    def find(self, id: str) -> CachedNode | None:
        """The node *id* and the message that it carries; None if it is not held."""
        held = self._cache.get(id)
        if held is not None and not (self.store.incomplete and self.store.seq(id) is None):
            return held
        if (direct := self.directs.find(id)) is not None:
            return CachedNode(direct.node)
        seq = self.store.seq(id)
        entry = None if seq is None else self.store.entry(seq)
        if entry is None:
            return None
        return self.cache(id, *self._read(entry))

    def cache(self, id: str, node: Node, message_id: str | None = None) -> CachedNode:
        """Cache a node, which is likely to be a parent or an author of the next ones."""
        held = CachedNode(node, message_id)
        self._cache.add(id, held)
        return held

    def cache_line(self, seq: int, line: bytes, expires: int | None) -> None:
        """Cache the *line* of the node at *seq*, which *expires* then (ms; None for never)."""
        self._signer.lines.add(seq, line, expires)

    def receipt(self, message: str) -> Receipt | None:
        """The receipt of the *message* with this id; None if it is not known."""
        return self._bus.find(message)

    def forget(self, id: str, seq: int, what: str) -> None:
        """Forget the node *id* at *seq*, minted for *what* or not minted, which leaves the log."""
        self._cache.drop(id)
        self.store.forget(id, seq, what)

    def line_at(self, seq: int) -> Form | None:
        """The line of the node at *seq*; None if it is not a node, retired, or expired."""
        lines = self._signer.lines
        if (line := lines.get(seq)) is not None:
            return None if lines.has_expired(seq, self._bus.clock()) else line
        form = self.entry_line(self.store.entry(seq))
        if isinstance(form, PendingForm):
            if not form.done or form.data is None:
                return form
            form = form.data
        if form is None:
            return None
        expires = expiration_of(form.partition(b" ")[2])
        lines.add(seq, form, expires)
        return form if expires is None or expires > self._bus.clock() else None

    def reread_line(self, seq: int) -> Form | None:
        """The line of the node at *seq* once more, expired or not; None if it cannot be read now."""
        try:
            return self._signer.lines.get(seq) or self.entry_line(self.store.entry(seq))
        except RequestError:
            return None

    def entry_line(self, entry: Entry | None) -> Form | None:
        """The line of the node in a record; None for no record."""
        if isinstance(entry, Fact):
            return b"%b %b" % (entry.fields["native"][NAME].encode(), entry.fields["wire"].encode())
        if entry is None:
            return None
        return self.message_line(entry)

    def message_line(self, message: Message) -> Form:
        """The line of a message, which is signed when it is first needed."""
        return message.forms.get(NAME) or message.form(NAME, self.form)

    def form(self, message: Message, _key: str) -> Form:
        """The line of a message, live or from the log, without its cache of forms."""
        if message.protocol == NAME and message.wire is not None and message.native is not None:
            return b"%b %b" % (message.native[NAME].encode(), message.wire)
        return self._signer.form(message)

    def _read(self, entry: Entry) -> tuple[Node, str | None]:
        if isinstance(entry, Fact):
            return decode(decode_base64url(entry.fields["wire"])), entry.fields.get("copy")
        return self._signer.reply(entry), entry.id
