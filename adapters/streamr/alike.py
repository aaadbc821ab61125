"""Reads PublishRequests that are written as one before them, but for what differs from message to message.

What is the same is not looked at, its text is compared. Whatever is read here, `decode_control` reads the same; what is
written another way, though it may mean the same, is left to that.
"""

from __future__ import annotations

from orjson import dumps, loads  # nothing that is taken here is nested deeply

from gateway import jsontext

from .checks import MAX_INTEGER
from .control import Publish
from .message import LATEST, MessageID, StreamMessage, usual_ref

Said = tuple[str | int, StreamMessage]  # the id of a request, and its message


class Alike:
    """Reads requests that differ from *first* in id, time, place in the chain, content and signature only."""

    def __init__(self, first: Publish) -> None:
        message = self._message = first.message
        stream, partition, _, _, publisher, chain = message.id
        self._codes = message.message_type, message.encryption_type, message.group_key_id, message.signature_type
        kind, encryption, key, signed = self._codes
        text = jsontext.dumps
        self._stream = b"[32,[%b,%d," % (text(stream), partition)
        self._chain = b",%b,%b]," % (text(publisher), text(chain))
        self._kind = b",%d,0,%d,%b," % (kind, encryption, text(key))
        self._signed = b",null,%d," % signed
        self._token = b",%b]" % text(first.session_token)

    def read(self, wire: bytes) -> Said | None:
        """What is said in *wire*; None where `decode_control` has to look at it.

        What stands before the content and behind it is written once more. Where both ends of *wire* are that, the rest
        is the content: they are whole JSON values, and *wire* is JSON, so neither begins or ends inside of a string.
        """
        like = self._message
        try:
            _, _, request_id, row, _ = loads(wire)
            _, (_, _, timestamp, sequence, _, _), given_ref, _, _, _, _, content, _, _, signature = row
            begin = b"[2,8,%b," % dumps(request_id)
            stream, chain, ref = self._stream, self._chain, dumps(given_ref)
            head = b"%b%b%d,%d%b%b%b" % (begin, stream, timestamp, sequence, chain, ref, self._kind)
            tail = b"%b%b]%b" % (self._signed, dumps(signature), self._token)
        except (ValueError, TypeError):  # no JSON, or something else
            return None
        if not (
            wire.startswith(head)
            and wire.endswith(tail)
            and type(request_id) is type(content) is str
            and type(signature) is type(like.signature)
            and content
            and 0 <= timestamp <= MAX_INTEGER
            and 0 <= sequence <= MAX_INTEGER
        ):
            return None
        stream_id, partition, _, _, publisher, msg_chain = like.id
        message_id = tuple.__new__(MessageID, (stream_id, partition, timestamp, sequence, publisher, msg_chain))
        prev_ref = usual_ref(given_ref, message_id) if type(given_ref) is list else None
        if prev_ref is None and given_ref is not None:
            return None
        kind, encryption, key, signed = self._codes
        text = wire[len(begin) : -len(self._token)]
        message = StreamMessage(
            message_id, content, prev_ref, kind, encryption, key, None, signed, signature, None, LATEST, text, True
        )
        return request_id, message
