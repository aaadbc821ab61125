"""Streamr messages that are signed in advance, so that the load generator does not sign."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from coincurve import PrivateKey
from Crypto.Hash import keccak

from .generator import SIZE, TOPIC
from .workload import MARK

AGE = 300_000  # ms, of the first message: so that none lies in the future, however fast a server is
FIRST = 1_000_000_000  # the first number, as the generator has it
KEY = PrivateKey.from_int(0xBE7C4)


def _keccak(data: bytes) -> bytes:
    return keccak.new(data=data, digest_bits=256).digest()


ADDRESS = "0x" + _keccak(KEY.public_key.format(compressed=False)[1:])[12:].hex()


class SignedMessages:
    """Makes *count* PublishRequests to *stream* for each round, later than those before: none is repeated."""

    def __init__(self, count: int, stream: str = TOPIC) -> None:
        self.count = count
        self.stream = stream
        self._next = 0

    def __call__(self) -> Sequence[bytes]:
        """Return the messages of the next round, ten with each timestamp."""
        start = max(self._next, int(time.time() * 1000) - AGE)
        self._next = start + self.count // 10 + 1
        return [request(start + n // 10, n % 10, n, self.stream) for n in range(self.count)]


def request(timestamp: int, sequence: int, number: int = 0, stream: str = TOPIC, *, signed: bool = True) -> bytes:
    """Return a PublishRequest with the content of the generator's messages; *timestamp* is in ms."""
    head = f'{{"n":{FIRST + number},"p":10000,"pad":"{MARK.decode()}'
    content = f'{head}{"x" * (SIZE - len(head) - 2)}"}}'
    publisher, chain, signature = (ADDRESS, "benchmarkbenchmark00", None) if signed else ("", "", None)
    if signed:
        text = f"{stream}0{timestamp}{sequence}{publisher}{chain}{content}".encode()
        digest = _keccak(b"\x19Ethereum Signed Message:\n%d" % len(text) + text)
        raw = KEY.sign_recoverable(digest, hasher=None)
        signature = f"0x{raw[:64].hex()}{raw[64] + 27:02x}"
    message_id = [stream, 0, timestamp, sequence, publisher, chain]
    row = [32, message_id, None, 27, 0, 0, None, content, None, 2 if signed else 0, signature]
    return json.dumps([2, 8, "request", row, None], separators=(",", ":")).encode()
