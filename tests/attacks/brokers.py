"""A hostile Streamr broker that the gateway dials, because its operator configured a link to it."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode
from itertools import count
from typing import Any

from .client_frames import STREAMR, TEXT, message, subscribe_streamr, texts, websocket
from .floods import ADDRESS, sign
from .relays import BATCH, LINKED, Dialled, attack, served
from .target import Report, Target

ANSWERS = 50  # requests of the gateway that are answered at once: it numbers them
OLD = 60_000  # ms before now, when what is replayed was signed
VICTIM = "0x" + "ab" * 20


def streamr_frame(*fields: Any) -> bytes:
    """The frame of a control message."""
    return served(json.dumps(fields, separators=(",", ":")).encode(), TEXT)


class AttackingBroker(Dialled):
    """A connection that the gateway opened, after its first requests were answered as a broker would."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream)
        for n in range(1, ANSWERS):
            stream.sendall(streamr_frame(2, 2, f"link {n}", LINKED, 0) + streamr_frame(2, 6, f"link {n}", LINKED, 0))


def delivered(row: Any) -> bytes:
    """The frame of a message."""
    return streamr_frame(2, 0, "", row)


def signed(content: str, at: int) -> Any:
    """A message that the attacker's own key signed."""
    signature = sign(f"{LINKED}0{at}0{ADDRESS}attack{content}")
    return message(LINKED, content, at, 0, ADDRESS, signature)


def flood(target: Target, seconds: float) -> Report:
    """It sends unsigned messages that are new, with ids of gateways that it made up, at full speed."""
    numbers, now = count(), time.time_ns() // 1_000_000

    def feed() -> bytes:
        rows = []
        for n, _ in zip(numbers, range(BATCH), strict=False):
            row = message(LINKED, json.dumps("x" * 50), now, n)
            rows.append([*row[:6], f"0190b3c2-2222-7abc-8def-{n:012d}", *row[7:]])
        return b"".join(map(delivered, rows))

    return attack(target, seconds, feed, AttackingBroker)


def forged(target: Target, seconds: float) -> Report:
    """It replays one signed message in every way, and sends others under the names of people who did not sign them."""
    now = time.time_ns() // 1_000_000
    genuine = signed('"genuine"', now - OLD)
    listener = websocket(target, STREAMR, subscribe_streamr(LINKED))
    listener.send(listener.feed)

    def feed() -> bytes:
        rows = []
        for n in range(BATCH):
            other = message(LINKED, f'"forged {n}"', now + n, 0, VICTIM, sign(str(n)))
            changed = [*genuine[:7], f'"changed {n}"', *genuine[8:]]
            moved = [genuine[0], ["elsewhere", *genuine[1][1:]], *genuine[2:]]
            claimed = [*genuine[:6], f"0190b3c2-3333-7abc-8def-{n:012d}", *genuine[7:]]
            rows += [genuine, other, changed, moved, claimed]
        return b"".join(map(delivered, rows))

    report = attack(target, seconds, feed, AttackingBroker)
    listener.socket.setblocking(False)
    listener.pull(1 << 20)
    heard = [frame[3][7] for frame in texts(listener.first.partition(b"\r\n\r\n")[2]) if frame[1] == 0]
    report.require("what was signed is heard once, and nothing else", heard == ['"genuine"'])
    listener.socket.close()
    return report


def garbage(target: Target, seconds: float) -> Report:
    """It answers what nobody asked, with frames of all kinds, most of which are no control messages."""
    numbers = count()
    noise = b64encode(bytes(range(256)) * 30).decode()
    fixed = [
        served(b"[" * 60_000),
        served(b'[2,0,"",' + b"[" * 190 + b"]" * 190 + b"]"),
        served(b'[2,0,"",' + b"[]," * 300_000 + b"0]"),
        served(b"\xff" * 60_000),
        streamr_frame(2, 0, "", [32, ["linked", 0, 1, 0, "", ""], None, 27, 0, 0, None, noise, None, 0, None]),
        streamr_frame(2, 7, "x" * 60_000, noise, noise),
    ]

    def feed() -> bytes:
        strange = []
        for n, _ in zip(numbers, range(BATCH), strict=False):
            strange += [streamr_frame(2, kind, f"sent {n}", f"{n:020d}", 0) for kind in (2, 4, 5, 6, 7)]
            strange.append(delivered(message(f"unasked/{n}", "1", n)))
        return b"".join([*fixed, *strange])

    return attack(target, seconds, feed, AttackingBroker)
