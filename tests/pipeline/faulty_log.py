"""A log with known faults and copies, and what is known of its signatures and nodes."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coincurve import PrivateKey

from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import MessageID, MessageRef, StreamMessage
from gateway.core.message import Message, Peer
from gateway.storage.record import Entry, Fact
from tests.pipeline.generate import VECTORS, lines, message, start

BEGIN: Final = 1_763_942_400_000  # 2025-11-24, a Monday
HOUR: Final = 3_600_000
KEYS: Final = [PrivateKey(bytes(31) + bytes([n])) for n in (7, 9)]
BRIDGED: Final = "SHA512_B32__bridged"
Record = dict[str, Any]


@dataclass
class Known:
    """What nobody can see in a line: whether a signature is forged, and what is in a node."""

    forged: set[int] = field(default_factory=set)
    nodes: dict[int, Record] = field(default_factory=dict)  # what is in the node of each record; `genuine`, `same_id`


class FaultyLog:
    """Makes the log, one record after the other."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.known = Known()
        self.entries: list[Entry] = [start(1, BEGIN)]
        self.chains: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        self.said: list[StreamMessage] = []
        self.nodes = [
            one["node"]
            for one in json.loads((VECTORS / "sprout/valid.json").read_text())
            if one["well_formed_and_signed"]
        ]
        self.dice.shuffle(self.nodes)
        self.told_nodes: list[Record] = []

    @property
    def seq(self) -> int:
        return len(self.entries) + 1

    @property
    def time(self) -> int:
        return BEGIN + self.seq * 2 * HOUR

    def play(self, count: int) -> None:
        """Add *count* records."""
        for _ in range(count):
            self.dice.choice((self.stream, self.stream, self.packet, self.packet, self.rest, self.node, self.fact))()

    def stream(self) -> None:
        n, chain = self.dice.randrange(2), self.dice.choice("cd")
        key, place = KEYS[n], (self.time + n, self.dice.randrange(3))
        before = self.chains[n, chain]
        previous = (
            self.dice.choice(before[-4:]) if before and self.dice.random() < 0.1 else before[-1] if before else None
        )
        id = MessageID("s", 0, *place, address_of(key.public_key), chain)
        ref = None if previous is None else MessageRef(*previous)
        said = sign_message(StreamMessage(id, json.dumps({"n": self.seq}), ref), key)
        before.append(place)
        fate = self.dice.random()
        if fate < 0.1:
            return  # it is lost
        if fate < 0.2:
            said = replace(said, content='{"n":"another"}', wire=None)
            self.known.forged.add(self.seq)
        elif fate < 0.3 and self.said:
            said = self.dice.choice(self.said)  # a copy, by a publisher that writes its address in other letters
            said = replace(said, id=said.id._replace(publisher_id="0x" + said.id.publisher_id[2:].upper()))
        elif fate < 0.35:
            said = replace(said, signature_type=0, signature=None)
        else:
            self.said.append(said)
        wire = b'[32,["s",0],null]' if fate > 0.97 else said.encode(self.dice.choice((31, 32)))
        self.add(b'{"n":1}', protocol="streamr", wire=wire, sender=Peer(n, "streamr", f"publisher {n}"))

    def packet(self) -> None:
        wire = b"[]" if self.dice.random() < 0.05 else b'{"type":6,"topic":"t","n":%d}' % self.seq
        sender = Peer(self.dice.randrange(3), "topic_relay", self.dice.choice((None, "ann", "bob")))
        self.add(b'{"n":%d}' % self.seq, protocol="topic_relay", wire=wire, sender=sender)

    def rest(self) -> None:
        sender = Peer(self.dice.randrange(3), "rest", self.dice.choice((None, "carl", "ann")))
        self.add('"gr\u00fc\u00df dich"'.encode(), protocol="rest", sender=sender, refs={"streamr": [1, 0]})

    def add(self, content: bytes, **more: Any) -> None:
        """Add a message, which may answer another, be a copy by its id, or not fit a protocol."""
        told = [entry for entry in self.entries if isinstance(entry, Message)]
        if told and self.dice.random() < 0.5:
            asked = self.dice.choice(told)
            more["parent"] = self.dice.choice((asked.id, *asked.ids))
        if told and self.dice.random() < 0.05:
            other = self.dice.choice(told)
            more |= {"id": other.id, "channel": other.channel}
            content = self.dice.choice((content, other.content))
        more = {"channel": self.dice.choice(("lobby", "weather", "gateway/stats")), **more}
        more["ids"] = self.dice.choice(((), (f"other-{self.seq}",)))
        more["undelivered"] = self.dice.choice(((), (), ("sprout",), ("sprout", "streamr")))
        self.entries.append(message(self.seq, self.time, content, **more))

    def node(self) -> None:
        """A node of a genuine program, a copy of one, or one that was changed: with its own id, or another's."""
        fate = self.dice.random()
        if self.nodes and (fate < 0.7 or not self.told_nodes):
            node, genuine = self.nodes.pop(), True
            self.told_nodes.append(node)
        elif self.told_nodes:
            node, genuine = self.dice.choice(self.told_nodes), fate < 0.5
        else:
            return
        wire = node["raw_b64u"] if genuine else node["raw_b64u"][:-8] + "AAAA" + node["raw_b64u"][-4:]
        self.known.nodes[self.seq] = {**node["fields"], "id": node["id"], "genuine": genuine}
        more: Record = {"protocol": "sprout", "native": {"sprout": node["id"]}}
        if node["fields"]["node_type"] == 2:
            self.add(b"null", wire=wire.encode(), sender=Peer(5, "sprout", "who"), **more)
        else:
            self.entries.append(Fact("entity", {**more, "wire": wire}, self.seq, self.time))

    def fact(self) -> None:
        dice, kind = self.dice, self.dice.choice(("counts", "form"))
        cells = [[bound, dice.randrange(1, 9)] for bound in (1_000, 2_000, 8_000)]
        flow = {"from": dice.choice(("rest", "sprout")), "to": "streamr", "delivered": sum(n for _, n in cells)}
        told: Record = {
            "minute": self.time // 86_400_000 * 86_400_000,
            "flows": [{**flow, "undelivered": 1, "latency": cells}],
        }
        if kind == "form":
            told = {"protocol": "sprout", "of": 2, "native": {"sprout": BRIDGED}}
        self.entries.append(Fact(kind, told, self.seq, self.time))


def log(count: int = 300, seed: int = 20) -> tuple[list[bytes], list[tuple[int, str]], Known]:
    """Return the lines of a log; the places (from 1 on) and causes of those that are no records; what is known."""
    talk = FaultyLog(seed)
    talk.play(count)
    told = lines(talk.entries)
    spoiled = {17: "checksum", 90: "torn", 150: "foreign", len(told) - 1: "checksum"}
    for at, cause in spoiled.items():
        line = told[at - 1]
        told[at - 1] = {
            "checksum": line.replace(b'"kind"', b'"kInd"', 1),
            "torn": line[:30] + b"\n",
            "foreign": b"Nov 21 12:00:00 host kernel: hello\n",
        }[cause]
    return told, sorted(spoiled.items()), talk.known


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
