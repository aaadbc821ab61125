"""Publishers of encrypted messages, and their keys."""

from __future__ import annotations

import json
import os
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

LONG = "so long that no other key opens it as JSON"  # one digit is JSON under one key in twenty-five
OAEP = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)


def aes(plain: bytes, key: bytes) -> str:
    vector = os.urandom(16)
    encryptor = Cipher(algorithms.AES(key), modes.CTR(vector)).encryptor()
    return (vector + encryptor.update(plain) + encryptor.finalize()).hex()


def rsa(plain: bytes, pem: str) -> str:
    public = serialization.load_pem_public_key(pem.encode())
    assert isinstance(public, RSAPublicKey)
    return public.encrypt(plain, OAEP).hex()


class Writer:
    """A publisher of an encrypted stream, as version 5 of the client is one; it does its own cryptography."""

    def __init__(self, broker: Any, publisher: Any) -> None:
        self.broker, self.publisher = broker, publisher
        self.session = broker.open()
        self.keys = {"k1": b"1" * 32, "k2": b"2" * 32}
        self.stream = f"SYSTEM/keyexchange/{publisher.address}"
        token = broker.token(publisher)
        assert broker.ask(self.session, [2, 9, "r", self.stream, 0, token])[0][1] == 2
        self.count = 0
        self.inbox: list[Any] = []

    def row(self, content: Any, key: str | None = "k1", secret: bytes | None = None, **more: Any) -> list[Any]:
        self.count += 1
        text = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
        sealed = aes(text, secret or self.keys[key or "k1"])
        more = {"encryption": 2, "group_key": key, **more}
        row: list[Any] = self.publisher.message("s", sealed, self.broker.clock(), self.count, **more)
        return row

    def publish(self, row: list[Any]) -> list[Any]:
        answers = self.broker.ask(self.session, [2, 8, "r", row, None])
        self.inbox += [answer for answer in answers if answer[1] == 0]
        return [answer for answer in answers if answer[1] != 0]

    def requests(self) -> list[Any]:
        """The group-key requests to this publisher: who asked, and what."""
        self.broker.core.drain()
        heard, self.inbox = [*self.inbox, *self.broker.frames(self.session)], []
        rows = [frame[3] for frame in heard if frame[1] == 0]
        return [(row[1][4], json.loads(row[7])) for row in rows if row[3] == 28]

    def tell(self, reader: str, content: Any, kind: int = 29, **more: Any) -> None:
        """Send a group-key message to *reader*."""
        self.count += 1
        stream = f"SYSTEM/keyexchange/{reader}"
        more = {"encryption": 1, **more}
        row = self.publisher.message(stream, content, self.broker.clock(), self.count, kind=kind, **more)
        assert self.publish(row) == []
        self.broker.core.drain()

    def answer(self, reader: str, request: list[Any]) -> None:
        """Give *reader* the keys it asked for."""
        request_id, stream, pem, ids = request
        self.tell(reader, [request_id, stream, [[id, rsa(self.keys[id], pem)] for id in ids if id in self.keys]])

    def give(self) -> None:
        """Answer every request there is."""
        for reader, request in self.requests():
            self.answer(reader, request)


def heard(toy: Any) -> list[Any]:
    return [json.loads(content) for content in toy.take() if isinstance(content, bytes)]


def undecrypted(broker: Any) -> int:
    return int(broker.core.metrics.counts["undecrypted"]["streamr",])


def ignored(broker: Any) -> int:
    return int(broker.core.metrics.counts["refused"]["streamr", "group key"])


def pass_time(broker: Any, ms: int) -> None:
    broker.clock.now += ms
    broker.adapter.tick(broker.clock.now)
