"""Arbor identities with keys that take as long to check as any that the gateway accepts, each forged.

Nothing is signed: any number is a modulus and a signature, and raising it to its power shows only at the end that it is
no signature. A key that is refused is not cached, so the same identities cost as much again.
"""

from __future__ import annotations

import os
import time
from typing import Final

from adapters.sprout.forest import forest, openpgp, packets
from adapters.sprout.wire import base64url
from gateway.commands.arbor_author import ArborAuthor
from gateway.core.jsontext import dumps
from gateway.demo_clients import ArborNode
from gateway.demo_clients.sprout import _line
from gateway.http.sync_messages import MAX_NEEDS

from .client_frames import request
from .target import Report, Target
from .unread import community_of
from .wire import Raw, drive

BITS: Final = 4096  # as many bits as may be checked in all take about as long with keys of other sizes
LINES: Final = 4  # of a request that hands messages over; it has 1.7 MB
CHANNEL: Final = "heavy/keys"


class HeavyKey:
    """A key of so many *bits* that certifies itself so often, and signs whatever comes."""

    def __init__(self, bits: int = BITS, certifications: int = openpgp.MAX_CERTIFIED_BITS // BITS**2) -> None:
        self._bits = bits
        now = int(time.time())
        numbers = packets.write_number(self._odd_number()) + packets.write_number(openpgp.MAX_EXPONENT)
        body = b"\x04" + now.to_bytes(4, "big") + bytes((packets.RSA,)) + numbers
        self._issuer = openpgp._fingerprint(body)
        signed = [self._signature(openpgp._CERTIFICATION) for _ in range(certifications)]
        parts = [(packets.PUBLIC_KEY, body), (packets.USER_ID, b"x"), *signed]
        self.public_key = b"".join(packets.write_packet(*part) for part in parts)

    def sign(self, _data: bytes, _created_seconds: int) -> bytes:
        """Return something with the form of a signature."""
        return packets.write_packet(*self._signature(0))

    def _signature(self, type: int) -> tuple[int, bytes]:
        created = (packets.CREATED, int(time.time()).to_bytes(4, "big"))
        hashed = packets.write_subpackets((created, (packets.ISSUER, self._issuer[-8:])))
        head = bytes((4, type, packets.RSA, packets.SHA256)) + len(hashed).to_bytes(2, "big") + hashed
        return packets.SIGNATURE, head + bytes(4) + packets.write_number(self._odd_number() >> 1)

    def _odd_number(self) -> int:
        return int.from_bytes(os.urandom(self._bits // 8), "big") | 1 | 1 << (self._bits - 1)


def heavy_identities(count: int) -> list[bytes]:
    """So many identities, each with a key of its own."""
    now = int(time.time() * 1000)
    return [forest.sign_identity(f"heavy {n}", HeavyKey(), now) for n in range(count)]


def announced(target: Target, seconds: float) -> Report:
    """Announces of these identities, at full speed."""
    report = Report()
    nodes = [ArborNode(forest.node_id(raw), raw) for raw in heavy_identities(MAX_NEEDS)]
    feed = "".join(f"announce {n} 1\n{_line(node)}\n" for n, node in enumerate(nodes)).encode()
    drive([Raw(target.sprout, feed) for _ in range(4)], report, seconds)
    return report


def handed_over(target: Target, seconds: float) -> Report:
    """Messages that another gateway hands over, each with as many of them as a message may need."""
    community, author, report = community_of(target, CHANNEL), ArborAuthor("attacker"), Report()
    reply = author.reply(community, "good", {})
    needs = [base64url.encode(raw).decode() for raw in heavy_identities(MAX_NEEDS)]
    line = {"id": reply.id, "channel": CHANNEL, "protocol": "sprout", "timestamp": 1, "content": 1}
    wire = base64url.encode(reply.raw).decode()
    body = (dumps(line | {"wire": wire, "needs": needs}) + b"\n") * LINES
    asked = request(target, "/v1/sync/import", "POST", body, {"Content-Type": "application/x-ndjson"})
    drive([Raw(target.http, asked) for _ in range(8)], report, seconds)
    return report
