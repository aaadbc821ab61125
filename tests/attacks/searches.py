"""Requests whose work is done in a thread: it is not the loop that is busy, but the interpreter."""

from __future__ import annotations

import time
from base64 import b64encode
from hashlib import sha256

from gateway.core.jsontext import dumps
from gateway.reconciliation.wire import FINGERPRINT_SIZE, ID_SIZE, VERSION, encode_integer

from .client_frames import http, request
from .target import Report, Target
from .wire import Raw, drive

NOTHING = sha256(bytes(ID_SIZE) + b"\0").digest()[:FINGERPRINT_SIZE]  # the fingerprint of a range without messages
RANGES = (500 << 10) // (len(NOTHING) + 3)
CHANNEL = "compared"
MESSAGES = 4_000


def _fill(target: Target) -> None:
    """Publish as many messages as may be published at once."""
    body = b"1\n" * MESSAGES
    http(target, f"/v1/channels/{CHANNEL}/messages", "POST", body, {"Content-Type": "application/x-ndjson"})


def compared(target: Target, seconds: float) -> Report:
    """Messages of many empty ranges in the middle of a channel, whose fingerprints all have to be computed."""
    begin = time.time_ns()
    _fill(target)
    middle = (begin + time.time_ns()) // 2_000_000
    first = encode_integer(1 + middle) + b"\x00\x01" + NOTHING
    message = bytes((VERSION,)) + first + (b"\x01\x00\x01" + NOTHING) * RANGES
    return _asked(target, request(target, f"/v1/sync?channels={CHANNEL}", "POST", message), seconds)


def told(target: Target, seconds: float) -> Report:
    """The answer that the other gateway has nothing of a channel, so all of that is told."""
    _fill(target)
    body = dumps({"message": b64encode(bytes((VERSION, 0, 0, 2, 0))).decode()})
    return _asked(target, request(target, f"/v1/sync/differences?channels={CHANNEL}", "POST", body), seconds)


def helped(target: Target, seconds: float) -> Report:
    """Searches of the documentation for many short words."""
    return _asked(target, request(target, f"/help/search.html?q={'a+' * 100}"), seconds)


def _asked(target: Target, asked: bytes, seconds: float) -> Report:
    report = Report()
    drive([Raw(target.http, asked) for _ in range(8)], report, seconds)
    return report
