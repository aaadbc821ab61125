"""Whether the nodes in a log are what they say: their ids, and their authors' signatures."""

from __future__ import annotations

from gateway.message import Message
from gateway.record import Entry, unbinary

from .forest import Identity, NodeError, decode_as, signed_part
from .openpgp import PublicKey
from .packets import OpenPGPError
from .tables import NAME


class Proof:
    """Looks at the entries of one log, in their order: an author's identity is logged before what it signs."""

    def __init__(self) -> None:
        self._keys: dict[str, PublicKey] = {}

    def __call__(self, entry: Entry) -> str | None:
        """What is wrong with the node in *entry*, None if nothing is or if it holds none."""
        if isinstance(entry, Message):
            native, wire = entry.native or {}, entry.wire
        else:
            native, wire = entry.fields.get("native", {}), entry.fields.get("wire")
        if entry.protocol != NAME or wire is None or NAME not in native:
            return None
        try:
            return self._look(str(native[NAME]), unbinary(wire))
        except (NodeError, OpenPGPError, ValueError) as error:
            return f"{native[NAME]}: {error}"

    def _look(self, id: str, raw: bytes) -> str | None:
        node = decode_as(id, raw)
        if isinstance(node, Identity):
            self._keys[id] = PublicKey(node.public_key)
        key = self._keys.get(id if isinstance(node, Identity) else node.author)
        if key is None:
            return f"{id}: its author is not in the log before it"
        key.verify(signed_part(node, raw), node.signature)
        return None
