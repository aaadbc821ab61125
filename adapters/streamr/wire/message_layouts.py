"""The order of a stream message's fields in the array of each version, and in each irregular form."""

from __future__ import annotations

from typing import Any, Final

from . import checks
from .checks import UNDEFINED
from .errors import StreamrError

# The arrays of the three versions, as the libraries write them.
# fmt: off
LAYOUTS: Final = {
    30: ("version", "msgId", "prevMsgRef", "messageType", "content", "signatureType", "signature"),
    31: ("version", "msgId", "prevMsgRef", "messageType", "encryptionType", "content", "signatureType", "signature"),
    32: ("version", "msgId", "prevMsgRef", "messageType", "contentType", "encryptionType", "groupKeyId",
         "content", "newGroupKey", "signatureType", "signature"),
}
# S1 writes version 30 without nesting; element 1 is then a string.
FLAT_30: Final = (
    "version", "streamId", "streamPartition", "timestamp", "sequenceNumber", "publisherId",
    "prevTimestamp", "prevSequenceNumber", "ttl", "messageType", "content", "signatureType", "signature",
)
# S2 writes version 32 without newGroupKey (its text), and without groupKeyId too (its examples). The
# signatureType is then the last but one element.
SHORT_32: Final = {
    10: ("version", "msgId", "prevMsgRef", "messageType", "contentType", "encryptionType", "groupKeyId",
         "content", "signatureType", "signature"),
    9: ("version", "msgId", "prevMsgRef", "messageType", "contentType", "encryptionType",
        "content", "signatureType", "signature"),
}
# fmt: on


def layout_of(row: list[Any]) -> tuple[str, ...]:
    """The names of the fields in *row*, in order; `StreamrError` if its version is not supported."""
    version = checks.as_integer(row[0]) if row else UNDEFINED
    if type(version) is not int or version not in LAYOUTS:
        supported = ",".join(map(str, LAYOUTS))
        raise StreamrError(
            f"Unsupported version: {checks.js_text(version)}, message: Supported versions: [{supported}]"
        )
    if version == 30 and len(row) > 1 and type(row[1]) is str:
        return FLAT_30
    if version == 32 and len(row) in SHORT_32 and type(row[-2]) is int:
        return SHORT_32[len(row)]
    return LAYOUTS[version]


def nest_flat_fields(fields: dict[str, Any]) -> None:
    """Give S1's flat fields the nested form. Its example writes the partition as a string."""
    partition = fields.get("streamPartition")
    if type(partition) is str and partition.isascii() and partition.isdigit() and len(partition) < 16:
        partition = int(partition)
    # S1 has no message chains: all messages of a publisher form one chain.
    head = [fields.get(name, UNDEFINED) for name in ("timestamp", "sequenceNumber", "publisherId")]
    fields["msgId"] = [fields["streamId"], partition, *head, None]
    fields["prevMsgRef"] = [fields.get("prevTimestamp"), fields.get("prevSequenceNumber")]
