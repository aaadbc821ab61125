"""Signals: messages that members of a cluster send each other beside the stream, as JSON.

A signal may be lost, and is kept nowhere. Every client that may write to the servers can send any signal, so each is
checked first, and a bad one is counted and ignored.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.core.errors import InvalidData
from gateway.storage.record_schema import MAX_NUMBER, MAX_SEQ

MAX_SIGNAL: Final = 6 << 20  # bytes: a direct message with a content and a wire form of 1 MiB each, in base64
MAX_VERSION: Final = 64  # characters
MAX_ROWS: Final = 256  # of one signal about presence
MAX_TEXT: Final = 1024  # characters of a name or an identity
MAX_LINKS: Final = 256  # that a member names
MAX_TERMS: Final = 256  # settings that members compare
PROTOCOL: Final = 2  # of signals, batches and log lines; a change that older members cannot use adds one

MemberId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}@[0-9]{1,16}\Z")]
Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Seq = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class BadSignal(InvalidData):
    """The bytes are not a signal; the text says why."""


class TurnRequest(msgspec.Struct, tag_field="signal", tag="want"):
    """*member* wants the turn, after so many *batches* that counted: a turn that an earlier one gave it is over."""

    member: MemberId
    batches: Count = 0


class Heartbeat(msgspec.Struct, tag_field="signal", tag="alive"):
    """*member* is alive: sent once a second."""

    member: MemberId
    version: Annotated[str, Meta(max_length=MAX_VERSION)]
    next_seq: Seq  # the sequence after the last one of its log
    place: Count  # how far it has read the stream
    is_accepting: bool = msgspec.field(default=False, name="acts")
    number: Count = 0  # of the last `PresenceChanges` that it sent
    speaks: Count = 1  # its `PROTOCOL`
    oldest: Count = 1  # the oldest `PROTOCOL` that it understands
    terms: Annotated[str, Meta(max_length=MAX_VERSION)] = ""  # their digest (`common_settings`); "": unknown
    links: Annotated[list[Annotated[str, Meta(max_length=16)]], Meta(max_length=MAX_LINKS)] = []  # digests
    clock: Count = 0  # its time (ms since 1970); 0 if unknown
    batches: Count = 0  # how many batches counted up to *place*
    block: Count = 0  # of its log (`gateway.cluster.log_comparison`), which has the *digest*; 0 for none
    digest: Annotated[str, Meta(max_length=16)] = ""


class Terms(msgspec.Struct, tag_field="signal", tag="terms"):
    """The *terms* of *member*, by name; if it *asks*, the others answer with theirs. See also `Heartbeat`."""

    member: MemberId
    version: Annotated[str, Meta(max_length=MAX_VERSION)]
    terms: Annotated[dict[Text, Text], Meta(max_length=MAX_TERMS)]
    asks: bool = False
    speaks: Count = 1
    oldest: Count = 1


class Leaving(msgspec.Struct, tag_field="signal", tag="leaving"):
    """*member* stops."""

    member: MemberId


class PeerRow(msgspec.Struct, array_like=True, frozen=True):
    """A peer in a channel; see `gateway.core.message.Peer`."""

    channel: Text
    number: Count
    protocol: Text
    identity: Text | None = None
    name: Text | None = None
    connection_protocol: Text | None = None


class PresenceChanges(msgspec.Struct, tag_field="signal", tag="changes"):
    """The *number*th change of the peers present at *member*: peers that *left*, then some that *joined*."""

    member: MemberId
    number: Count
    left: Annotated[list[tuple[Text, Count]], Meta(max_length=MAX_ROWS)] = []
    joined: Annotated[list[PeerRow], Meta(max_length=MAX_ROWS)] = []


class SnapshotRequest(msgspec.Struct, tag_field="signal", tag="ask"):
    """*member* asks another one for all peers present there."""

    member: MemberId


class PresenceSnapshot(msgspec.Struct, tag_field="signal", tag="snapshot"):
    """A *part* (from 0) of all peers present at *member* after the *number*th change; *more* if parts follow."""

    member: MemberId
    number: Count
    part: Count
    more: bool
    rows: Annotated[list[PeerRow], Meta(max_length=MAX_ROWS)] = []


class DirectSignal(msgspec.Struct, tag_field="signal", tag="direct"):
    """A direct message to the peer with *number*: its *line* as of the log, and the *name* of its sender.

    *member* wants to be told, with *id*, to how many connections it was delivered.
    """

    member: MemberId
    id: Count
    number: Count
    line: bytes
    name: Text | None = None


class DirectOutcome(msgspec.Struct, tag_field="signal", tag="delivered"):
    """*member* delivered the direct message *id* to *count* connections; protocols in *unfit* cannot carry it."""

    member: MemberId
    id: Count
    count: Count
    unfit: Annotated[list[Text], Meta(max_length=16)] = []


class AdapterSignal(msgspec.Struct, tag_field="signal", tag="words"):
    """What the adapter of *protocol* at *member* tells the adapters of that protocol at all others."""

    member: MemberId
    protocol: Text
    data: bytes


Signal = (
    TurnRequest
    | Heartbeat
    | Terms
    | Leaving
    | PresenceChanges
    | SnapshotRequest
    | PresenceSnapshot
    | DirectSignal
    | DirectOutcome
    | AdapterSignal
)

_DECODER: Final = msgspec.json.Decoder(Signal)
encode_signal: Final = msgspec.json.Encoder().encode


def decode_signal(data: bytes) -> Signal:
    """The signal in *data*. Raises `BadSignal` if *data* is not one."""
    if len(data) > MAX_SIGNAL:
        raise BadSignal(f"a signal has at most {MAX_SIGNAL:,} bytes")
    try:
        signal: Signal = _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadSignal(str(error)) from None
    return signal
