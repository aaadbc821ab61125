"""Connections that send nothing, or half of something, and then wait, on every port; and no attack, to compare."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from functools import cache, partial

from .client_frames import RELAY, upgrade
from .target import Report, Target
from .wire import CHUNK, TURN, ConnectionSet, Raw, drive

MANY = 1_000
Make = Callable[[Target], Raw]


@cache
def _hello() -> bytes:
    """The first message of a TLS handshake."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    wrapped = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    try:
        wrapped.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("the handshake ended without an answer")


# How each of them begins, by its name.
OPENINGS: dict[str, Make] = {
    "http silent": lambda target: Raw(target.http),
    "http half head": lambda target: Raw(target.http, greeting=b"GET /v1/channels HTTP/1.1\r\nHost: localhost\r\nX-"),
    "websocket half head": lambda target: Raw(target.http, greeting=upgrade(target, RELAY)[:-2]),
    "sprout silent": lambda target: Raw(target.sprout),
    "sprout half line": lambda target: Raw(target.sprout, greeting=b"version 1 "),
    "https silent": lambda target: Raw(target.http),
    "https half handshake": lambda target: Raw(target.http, greeting=_hello()[:100]),
    "https handshake left alone": lambda target: Raw(target.http, greeting=_hello()),
    "sprout tls silent": lambda target: Raw(target.sprout_tls),
    "sprout tls half handshake": lambda target: Raw(target.sprout_tls, greeting=_hello()[:100]),
    "sprout tls handshake left alone": lambda target: Raw(target.sprout_tls, greeting=_hello()),
}


def nothing(_target: Target, seconds: float) -> Report:
    """Nobody attacks: what is measured differs by so much on its own."""
    time.sleep(seconds)
    return Report()


def count(_target: Target, seconds: float) -> Report:
    """A program that counts and leaves the gateway alone: what the CPU time of any attacker costs others."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass
    return Report()


def wait(*names: str) -> Callable[[Target, float], Report]:
    """An attack: `MANY` connections that begin in these ways, in equal parts, and wait."""
    return partial(_wait, names)


def _wait(names: tuple[str, ...], target: Target, seconds: float) -> Report:
    report = Report()
    peers = [OPENINGS[name](target) for _ in range(MANY // len(names)) for name in names]
    drive(peers, report, seconds)
    return report


def drip(target: Target, seconds: float) -> Report:
    """Heads of requests a byte a second: every byte comes in time, the head never."""
    report, text = Report(), upgrade(target, RELAY)
    deadline = time.monotonic() + seconds
    with ConnectionSet(report, CHUNK) as connections:
        for _ in range(MANY // 4):
            connections.add(Raw(target.http))
        for byte in text:
            for peer in list(connections.peers):
                peer.feed, peer.place, peer.turns = bytes((byte,)), 0, 1
                peer.push()
            turn = time.monotonic() + 1
            while time.monotonic() < min(turn, deadline):
                connections.run_once()
                connections.remove_dropped()
                time.sleep(TURN)
            if not connections.peers or time.monotonic() > deadline:
                break
    return report
