"""The id by which gateways know a message, in stream messages between gateways.

It is in a field that an unencrypted message leaves empty and that no signature covers: the id of the group key. A
gateway removes it, and genuine programs do not look at it. A gateway that dials another asks for it in its URL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from gateway.core.shared_ids import is_canonical

from .message import LATEST, NONE, StreamMessage

ASKED: Final = "trellisId"  # the parameter of a URL that asks for ids


def without_claim(message: StreamMessage) -> tuple[StreamMessage, str | None]:
    """*message* as its publisher made it, and the id that another gateway added."""
    claim = message.group_key_id
    if claim is None or message.encryption_type != NONE or not is_canonical(claim):
        return message, None
    return _rewritten(message, group_key_id=None), claim


def with_claim(message: StreamMessage, id: str) -> StreamMessage:
    """*message* for another gateway, with its *id*; as it is if it is encrypted."""
    return message if message.encryption_type != NONE else _rewritten(message, group_key_id=id)


def _rewritten(message: StreamMessage, **fields: Any) -> StreamMessage:
    bare = replace(message, wire=None, version=LATEST, verbatim=False, **fields)
    return replace(bare, wire=bare.encode(LATEST), verbatim=True)
