"""Reads PublishRequests by the template of an earlier one, which is faster than a full decode.

The text of the fields that do not change is compared instead of decoded. For every request that a template reads,
`decode_control` returns the same; a request that is written differently, even if it means the same, is left to it.
"""

from __future__ import annotations

from orjson import dumps, loads  # nothing that is taken here is nested deeply

from gateway.core.jsontext import MAX_VALUES
from gateway.core.nesting import has_more_values

from .checks import MAX_ID, MAX_INTEGER, MAX_NAME
from .control import PublishRequest
from .message import LATEST, MessageID, StreamMessage, decode_ref_fast

RequestedMessage = tuple[str, StreamMessage]  # a request's id and the message that it publishes


class PublishTemplate:
    """Reads requests that differ from *first* in id, time, place in the chain, content and signature only.

    *first* is what `codec.decode_publish_fast` read: of version 32, with nothing to find fault with.
    """

    def __init__(self, first: PublishRequest) -> None:
        # [2,8,ID,[32,[stream,partition,TIME,SEQUENCE,publisher,chain],REF,kind,0,encryption,key,CONTENT,null,signed,
        # SIGNATURE],token]: what is in capitals differs.
        message = self._message = first.message
        stream, partition, _, _, publisher, chain = message.id
        key = dumps(message.group_key_id)
        self._to_time = b"[%d,[%b,%d," % (LATEST, dumps(stream), partition)
        self._to_ref = b",%b,%b]," % (dumps(publisher), dumps(chain))
        self._to_content = b",%d,0,%d,%b," % (message.message_type, message.encryption_type, key)
        self._to_signature = b",null,%d," % message.signature_type
        self._token = b",%b]" % dumps(first.session_token)

    def read(self, wire: bytes) -> RequestedMessage | None:
        """The request id and the message in *wire*; None if `decode_control` has to read it.

        The texts before and after the content are rebuilt. If *wire* begins and ends with them, the rest is the
        content: both consist of whole JSON values, and *wire* is JSON, so neither can begin or end inside a string.
        """
        like = self._message
        if has_more_values(wire, MAX_VALUES):
            return None
        try:
            _, _, request_id, row, _ = loads(wire)
            _, (_, _, timestamp, sequence, _, _), given_ref, _, _, _, _, content, _, _, signature = row
            begin = b"[2,8,%b," % dumps(request_id)
            head = b"%b%b%d,%d%b%b%b" % (
                begin, self._to_time, timestamp, sequence, self._to_ref, dumps(given_ref), self._to_content
            )  # fmt: skip
            tail = b"%b%b]%b" % (self._to_signature, dumps(signature), self._token)
        except (ValueError, TypeError):  # no JSON, or something else
            return None
        if not (
            wire.startswith(head)
            and wire.endswith(tail)
            and type(request_id) is type(content) is str
            and type(signature) is type(like.signature)
            and content
            and len(request_id) <= MAX_ID
            and (signature is None or len(signature) <= MAX_NAME)
            and 0 <= timestamp <= MAX_INTEGER
            and 0 <= sequence <= MAX_INTEGER
        ):
            return None
        stream, partition, _, _, publisher, chain = like.id
        message_id = tuple.__new__(MessageID, (stream, partition, timestamp, sequence, publisher, chain))
        ref = None if given_ref is None else decode_ref_fast(given_ref, message_id)
        if given_ref is not None and ref is None:
            return None
        kind, encryption, key, signed = like.message_type, like.encryption_type, like.group_key_id, like.signature_type
        row_text = wire[len(begin) : -len(self._token)]
        message = StreamMessage(
            message_id, content, ref, kind, encryption, key, None, signed, signature, None, LATEST, row_text, True
        )
        return request_id, message
