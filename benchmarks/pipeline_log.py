"""Logs of millions of records for the pipeline's benchmarks, written by all cores."""

from __future__ import annotations

import os
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, Final

from coincurve import PrivateKey
from zlib_ng.zlib_ng import crc32

from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import MessageID, MessageRef, StreamMessage
from gateway.core.jsontext import dumps
from gateway.core.message import Message, MessageIds, Peer
from gateway.storage.record import CRC, Fact, encode

GATEWAY: Final = "be7c"  # whose log it is: the ids of the messages are its own, and need no row in the index
BEGIN: Final = 1_763_700_000_000  # ms
PER_SEGMENT: Final = 40_000  # records, some 16 MB
SIGNED: Final = 5  # each fifth record is a signed Streamr message
CHAINS: Final = 500
_SEQ: Final = 7_777_777_777  # stands for the sequence in a template
_TEXT: Final = "a usual message of a usual length"
_IDS: Final = MessageIds(int(GATEWAY, 16))


def write(pool: Pool, folder: Path, count: int, first: int = 1, *, plain: bool = False) -> None:
    """Write *count* records, from the sequence *first* on, as segments into *folder*; *plain* ones are all alike."""
    folder.mkdir(parents=True, exist_ok=True)
    spans = [(begin, min(PER_SEGMENT, first + count - begin)) for begin in range(first, first + count, PER_SEGMENT)]
    pool.starmap(_write, [(folder, *span, plain) for span in spans], chunksize=1)


def _write(folder: Path, first: int, count: int, plain: bool) -> None:
    make = _plain if plain else _record
    path = folder / f"{first:020d}.jsonl"
    temporary = folder / f".{path.name}.{os.getpid()}"
    temporary.write_bytes(b"".join(_start() if seq == 1 else make(seq) for seq in range(first, first + count)))
    temporary.rename(path)


def _start() -> bytes:
    return encode(Fact("start", {"gateway": GATEWAY, "version": "1"}, 1, BEGIN))


def _record(seq: int) -> bytes:
    """Return the line of a record: of five, three are of the topic relay, one of REST, one of Streamr and signed.

    Each 20th answers the one before, and each sender has a name.
    """
    content = dumps({"n": seq, "temperature": seq % 40 / 2, "text": _TEXT})
    more: dict[str, Any] = {"protocol": "topic_relay", "wire": b'{"type":6,"topic":"channel",%b' % content[1:]}
    match seq % SIGNED:
        case 0:
            more = {"protocol": "streamr", **_signed(seq, content)}
        case 1:
            more = {"protocol": "rest"}
    more["sender"] = Peer(seq % 200, more["protocol"], f"sender {seq % 200}")
    time = BEGIN + seq * 5
    refs: dict[str, Any] = {"streamr": [time, 0, time - 5, 0], "sprout": {}}
    parent = _id(seq - 1) if seq % 20 == 3 else None
    channel = f"channel {seq % 50}"
    given: dict[str, Any] = {
        "id": _id(seq),
        "seq": seq,
        "time": time,
        "timestamp": time,
        "refs": refs,
        "parent": parent,
    }
    return encode(Message(channel=channel, content=content, **given, **more))


def _id(seq: int) -> str:
    return _IDS.make(BEGIN + seq * 5, seq)


@cache
def _key() -> tuple[PrivateKey, str]:
    key = PrivateKey(bytes(31) + b"\7")
    return key, address_of(key.public_key)


def _signed(seq: int, content: bytes) -> dict[str, Any]:
    (key, address), before = _key(), seq - SIGNED * CHAINS
    id = MessageID(f"s{seq // SIGNED % CHAINS}", 0, BEGIN + seq * 5, 0, address, "c")
    reference = MessageRef(BEGIN + before * 5, 0) if before > 0 else None
    said = sign_message(StreamMessage(id, content.decode(), reference), key)
    return {"wire": said.encode(32), "native": {"streamr": list(id)}}


@cache
def _template() -> tuple[bytes, ...]:
    content, seq = dumps({"n": 1, "text": _TEXT}), _SEQ
    line = encode(Message("channel", Peer(1, "rest", None), "rest", content, id=f"id-{seq}", seq=seq, time=BEGIN))
    return tuple(line.rpartition(CRC)[0].split(str(seq).encode()))


def _plain(seq: int) -> bytes:
    """Return the line of a record that is made fast: only its sequence and its id differ from others."""
    body = (b"%d" % seq).join(_template())
    return b'%b%b%08x"}\n' % (body, CRC, crc32(body))
