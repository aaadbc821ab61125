"""Malformed input of every protocol, sent as fast as the gateway reads it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from itertools import cycle

from .client_frames import BINARY, RELAY, STREAMR, TRACKER, WS, frame, request, websocket
from .target import Report, Target
from .wire import Raw, drive

MILLION = 1_000_000
NOISE = random.Random(14).randbytes(20_000)
NESTED = "[" * 5_000 + "]" * 5_000

# Texts that are no message of any protocol, by their names; the longest are just short enough to be read.
TEXTS: dict[str, bytes] = {
    "brackets": b"[" * MILLION,
    "braces": b'{"":' * (MILLION // 4),
    "nested": NESTED.encode(),
    "digits": b"1" * MILLION,
    "exponent": b"1e" + b"9" * 1_000,
    "empty arrays": b"[" + b"[]," * (MILLION // 3) + b"[]]",
    "many fields": b"{" + b",".join(b'"%d":1' % n for n in range(90_000)) + b"}",
    "one field": b'{"type":6,' + b'"type":6,' * 90_000 + b'"topic":"t"}',
    "escapes": b'"' + b"\\u0041" * (MILLION // 6) + b'"',
    "half characters": b'{"type":6,"topic":"\\ud800","text":"\\udfff"}',
    "too long": json.dumps({"type": 6, "topic": "t", "text": "x" * 64_960}).encode(),
    "nested packet": f'{{"type":6,"topic":"t","a":{NESTED}}}'.encode(),
    "nested request": f'[2,8,"p",[32,["t",0,1,0,"","c"],null,27,0,0,null,"{NESTED}",null,0,null],null]'.encode(),
    "numbers": b'{"type":6,"topic":"t","dst":1e400,"n":-0.000000000000000000000000000000000000000000000001}',
    "nothing": b"",
}

# Bytes that are no WebSocket frames, by their names; each ends its connection, and another takes its place.
BROKEN: dict[str, bytes] = {
    "not UTF-8": frame(b"\xff" * 1_000),
    "noise": NOISE,
    "unmasked": b"\x81\x05hello",
    "reserved": b"\xf1\x80\0\0\0\0",
    "too large": b"\x81\xff" + (1 << 40).to_bytes(8) + bytes(4),
    "huge": b"\x81\xff" + b"\xff" * 8 + bytes(4),
    "continued": frame(b"x", 0),
}

LINES: dict[str, bytes] = {
    "count of -1": b"list 1 1 -1\n",
    "count of 10^11": b"list 1 1 99999999999\n",
    "announce of -1": b"announce 1 -1\n",
    "announce of 10^11": b"announce 1 99999999999\n",
    "query of 10^11": b"query 1 99999999999\n",
    "noise": NOISE.replace(b"\n", b"") + b"\n",
    "line over its limit": b"x" * 300_000 + b"\n",
    "no lines": b"x" * MILLION,
    "not base64": b"announce 1 1\nSHA512_B32__" + b"A" * 43 + b" " + b"!" * 80_000 + b"\n",
    "no node": b"announce 1 1\nSHA512_B32__" + b"A" * 43 + b" " + b"A" * 80_000 + b"\n",
    "not ascii": b"\xff" * 1_000 + b"\n",
    "unknown verb": b"frobnicate 1 2 3\n",
    "empty lines": b"\n" * 10_000,
}


def _flood(makes: list[Callable[[], Raw]], seconds: float) -> Report:
    report = Report()
    more = cycle(makes)

    def again() -> Raw:
        return next(more)()

    drive([make() for make in makes], report, seconds, again=again)
    return report


def websockets(path: str) -> Callable[[Target, float], Report]:
    """An attack: each of the texts, and each of what is no WebSocket, on a connection of its own, again and again."""
    return partial(_websockets, path)


def _websockets(path: str, target: Target, seconds: float) -> Report:
    feeds = [*(frame(text) for text in TEXTS.values()), *BROKEN.values(), frame(NOISE, BINARY)]
    return _flood([partial(websocket, target, path, feed) for feed in feeds], seconds)


def single(path: str, text: str) -> Callable[[Target, float], Report]:
    """An attack: one text on one connection, again and again."""
    return partial(_single, path, text)


def _single(path: str, text: str, target: Target, seconds: float) -> Report:
    return _flood([partial(websocket, target, path, frame(TEXTS[text]))], seconds)


def lines(target: Target, seconds: float) -> Report:
    """Each of the lines on a Sprout connection of its own."""
    return _flood([partial(Raw, target.sprout, feed) for feed in LINES.values()], seconds)


def bodies(target: Target, seconds: float) -> Report:
    """Each of the texts as a message by REST, and as one of a stream."""
    paths = ("/v1/channels/garbage/messages", "/api/v1/streams/garbage/data")
    feeds = [request(target, path, "POST", text) for path in paths for text in TEXTS.values()]
    return _flood([partial(Raw, target.http, feed) for feed in feeds], seconds)


RELAY_GARBAGE = websockets(RELAY)
WS_GARBAGE = websockets(WS)
STREAMR_GARBAGE = websockets(STREAMR)
TRACKER_GARBAGE = websockets(TRACKER)
NETWORK_GARBAGE = websockets("/network")
