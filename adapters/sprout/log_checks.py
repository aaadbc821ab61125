"""Verifies the nodes in a log: their form, their ids, and their authors' signatures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from adapters.sprout.forest.forest import Identity, Node, NodeError, Reply, decode_as, is_node_id, signed_part
from adapters.sprout.forest.openpgp import PublicKey
from adapters.sprout.forest.packets import OpenPGPError
from adapters.sprout.mint.mint import GATEWAY, PEER_PREFIX
from adapters.sprout.store.tables import DAY_PREFIX, NAME, parse_day_name
from gateway.core.channels import valid_name
from gateway.core.message import Message
from gateway.storage.record import Entry, decode_base64url

_WIRE: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_REFS: Final = {"parent": str, "depth": int, "conversation": str, "community": str}


def flaw(entry: Entry) -> str | None:
    """Why *entry* is not well formed, by Arbor's rules; None if it is. Signatures are not verified."""
    try:
        if isinstance(entry, Message):
            _check_message(entry)
        elif entry.kind == "channel":
            address = entry.fields["addresses"].get(NAME)
            return None if address is None or is_node_id(address) else "its address is not the id of a community"
        elif entry.protocol == NAME and entry.kind == "entity":
            _check_entity(entry.fields)
        elif entry.protocol == NAME and entry.kind == "form":
            _id_of(entry.fields["native"])
    except (NodeError, ValueError, OverflowError) as error:
        return f"it holds no valid node: {error}"
    return None


def _check_message(message: Message) -> None:
    if message.protocol == NAME and (message.wire is not None or message.native is not None):
        node = _node(message.native, "" if message.wire is None else message.wire.decode())
        if not isinstance(node, Reply):
            raise ValueError("a message is a reply")
    refs = message.refs.get(NAME, {})
    if type(refs) is not dict or (
        refs and any(type(refs[name]) is not kind for name, kind in _REFS.items() if name in refs)
    ):
        raise ValueError("its refs are not valid")


def _check_entity(fields: Mapping[str, Any]) -> None:
    _node(fields["native"], fields["wire"])
    what, channel, alias, copy = (fields.get(name) for name in ("what", "channel", "alias", "copy"))
    if what is not None and not (type(what) is str and _is_minted(what)):
        raise ValueError("its purpose is not one of a minted node")
    if not all(name is None or (type(name) is str and valid_name(name)) for name in (channel or None, alias)):
        raise ValueError("its channel has no valid name")
    if copy is not None and type(copy) is not str:
        raise ValueError("the id that it is a copy of is not text")


def _is_minted(what: str) -> bool:
    if what.startswith(DAY_PREFIX):
        return valid_name(parse_day_name(what)[2])
    return what == GATEWAY or (what.startswith(PEER_PREFIX) and what.removeprefix(PEER_PREFIX).isdecimal())


def _node(native: Any, wire: str) -> Node:
    if not _WIRE.fullmatch(wire):
        raise ValueError("no base64url")
    return decode_as(_id_of(native), decode_base64url(wire))


def _id_of(native: Any) -> str:
    id = native.get(NAME) if type(native) is dict else None
    if type(id) is not str or not is_node_id(id):
        raise ValueError("no id of a node")
    return id


class SignatureVerifier:
    """Verifies the entries of one log in order: an author's identity comes before what it signs."""

    def __init__(self) -> None:
        self._keys: dict[str, PublicKey] = {}

    def __call__(self, entry: Entry) -> str | None:
        """Return what is wrong with the node in *entry*; None if it is valid, or if *entry* has no node."""
        if entry.protocol != NAME or flaw(entry) is not None:
            return None  # not a node that could be signed
        if isinstance(entry, Message):
            native, wire = entry.native, entry.wire
        elif entry.kind == "entity":
            native, wire = entry.fields["native"], entry.fields["wire"]
        else:
            return None
        if native is None or wire is None:
            return None
        try:
            return self._look(str(native[NAME]), decode_base64url(wire))
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
