"""Logs with known contents and known faults, written with the gateway's own `record.encode`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coincurve import PrivateKey

from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import MessageID, MessageRef, StreamMessage
from gateway.core.jsontext import dumps
from gateway.core.message import Message, Peer
from gateway.storage.record import Entry, Fact, encode

VECTORS = Path(__file__).parents[1] / "vectors"
GATEWAY = "00c0ffee"
START = 1_763_700_000_000  # ms; not at the beginning of a minute

# Contents that a careless reader cuts in the wrong place, or does not give back digit by digit.
NASTY = (
    b'{"a": 1.0e2,"wire":"x","b":1.50}',
    b'{"parent":"p","native":{"wire":"y"},"refs":null,"ids":["1"],"key":"k"}',
    b'{"x":{"undelivered":["rest"],"wire":","},"content":[1,{"content":2}]}',
    b'"1"',
    b"1",
    b"null",
    b'"a \\" ,\\"wire\\":\\" \\ud83d\\ude00 \\u00e9"',
    '"ü ,{}[] \U0001f600"'.encode(),
    b'"half \\ud800"',
    b"1" + b"0" * 1200,
    b"[" * 150 + b"]" * 150,
    b'{"content":"wire","crc":"12345678"}',
    b"{}",
    b"[ 1 , 2 ]",
)


def message(seq: int, time: int, content: bytes = b'"hi"', **more: Any) -> Message:
    """One message; *more* are fields of `Message`."""
    sender = more.pop("sender", Peer(7, "toy", None))
    given = {"channel": "lobby", "protocol": "toy", "id": f"id-{seq}", "timestamp": time, **more}
    return Message(sender=sender, content=content, seq=seq, time=time, **given)


def start(seq: int = 1, time: int = START, gateway: str = GATEWAY) -> Fact:
    """The first record of a run."""
    return Fact("start", {"gateway": gateway, "version": "0.1.0"}, seq, time)


def talk(count: int, seed: int = 1, first: int = 1) -> list[Entry]:
    """*count* records: a start, then messages of many shapes with some facts among them."""
    dice = random.Random(seed)
    entries: list[Entry] = [start(first)]
    time = START
    for seq in range(first + 1, first + count):
        time += dice.choice((0, 1, 40, 900))
        entries.append(_something(dice, seq, time))
    return entries


def _something(dice: random.Random, seq: int, time: int) -> Entry:
    if dice.random() < 0.05:
        return Fact("peer", {"peer": seq, "protocol": "sprout", "sender": f"who {seq}"}, seq, time)
    content = dice.choice(NASTY) if dice.random() < 0.3 else dumps({"n": seq, "text": "x" * dice.randrange(80)})
    more: dict[str, Any] = {"channel": dice.choice(("lobby", "weather", "gateway/stats", 'a "quoted" name'))}
    more["protocol"] = protocol = dice.choice(("topic_relay", "sprout", "streamr", "rest"))
    spoken = dice.choice((protocol, protocol, "rest"))
    more["sender"] = Peer(dice.randrange(5), spoken, dice.choice((None, "0xabc", "someone")))
    more |= {name: value for name, value in _OPTIONAL.items() if dice.random() < 0.4}
    if dice.random() < 0.2:
        more["timestamp"] = time - 5
    return message(seq, time, content, **more)


_OPTIONAL: dict[str, Any] = {
    "parent": 'id-1 ,"wire":"',
    "native": {"streamr": ["s", 0, 1, 0, "0xabc", "c"]},
    "ids": ("further", 'quoted ",'),
    "key": "key:[1]",
    "refs": {"streamr": [1, 0], "sprout": {"parent": "p", "depth": 3, "conversation": "day 1"}},
    "undelivered": ("sprout",),
    "wire": b'{"type":6,"topic":"lobby","wire":"\\u00e9"}',
}


def lines(entries: Iterable[Entry]) -> list[bytes]:
    """Their lines."""
    return [encode(entry) for entry in entries]


def write(directory: Path, all_lines: list[bytes], each: int = 100, first: int = 1) -> list[Path]:
    """Sealed segments of *each* lines, which are dense from *first* on."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for at in range(0, len(all_lines), each):
        path = directory / f"{first + at:020d}.jsonl"
        path.write_bytes(b"".join(all_lines[at : at + each]))
        paths.append(path)
    return paths


def mixed(count: int) -> list[Entry]:
    """*count* records of all protocols: genuine nodes, signed messages in chains with gaps, answers, and counts."""
    nodes = [one for one in json.loads((VECTORS / "sprout/valid.json").read_text()) if one["well_formed_and_signed"]]
    key = PrivateKey(bytes(31) + b"\7")
    entries: list[Entry] = [start()]
    previous: MessageRef | None = None
    for seq in range(2, count + 1):
        time = START + 700 * seq
        match seq % 4:
            case 0 if nodes:
                entries.append(_node(seq, time, nodes.pop(0)["node"]))
            case 1:
                id = MessageID("s", 0, time, 0, address_of(key.public_key), "c")
                said = sign_message(StreamMessage(id, json.dumps({"n": seq}), previous), key)
                previous = MessageRef(time, 0)
                more: dict[str, Any] = {"wire": said.encode(32), "native": {"streamr": list(id)}, "protocol": "streamr"}
                if seq % 20 != 1:
                    entries.append(message(seq, time, said.content.encode(), **more))
                    continue
                entries.append(counted(seq, time))
            case _:
                entries.append(_packet(seq, time))
    return entries


def _packet(seq: int, time: int) -> Entry:
    """A packet of the topic relay; most answer an earlier one, some by a sender with a name."""
    parent = {2: f"id-{seq - 3}" if seq > 8 else None, 3: f"id-{seq - 1}", 7: f"id-{seq - 1}"}.get(seq % 8)
    sender = Peer(7, "topic_relay", "ann" if seq % 3 else None)
    told: dict[str, Any] = {"parent": parent, "undelivered": () if seq % 5 else ("sprout",)}
    wire = b'{"type":6,"topic":"lobby","n":%d}' % seq
    return message(seq, time, b'{"n":%d}' % seq, protocol="topic_relay", sender=sender, wire=wire, **told)


def counted(seq: int, time: int) -> Fact:
    """A `counts` fact of the minute before."""
    flow = {"from": "streamr", "to": "sprout", "delivered": 9, "undelivered": 1, "latency": [[1000, 5], [4000, 4]]}
    return Fact("counts", {"minute": time // 60_000 * 60_000, "flows": [flow]}, seq, time)


def _node(seq: int, time: int, node: dict[str, Any]) -> Entry:
    native = {"sprout": node["id"]}
    if node["fields"]["node_type"] == 2:
        return message(seq, time, protocol="sprout", wire=node["raw_b64u"].encode(), native=native)
    return Fact("entity", {"protocol": "sprout", "native": native, "wire": node["raw_b64u"]}, seq, time)


# A log of all sorts, with a line in it that is no record.
MIXED = [*lines(mixed(240)), b"rubbish\n"]
