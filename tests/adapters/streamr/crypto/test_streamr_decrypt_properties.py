"""Every accepted message is published once and in order, whenever its key arrives, or never."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.streamr.crypto import decrypt, held_messages
from adapters.streamr.crypto.ciphers import RsaPair, aes_encrypt, rsa_encrypt
from adapters.streamr.crypto.decrypt import FAILURE_MEMORY, KEY_WAIT, Decryptor
from adapters.streamr.crypto.group_keys import KeyRequest
from adapters.streamr.crypto.keyring import Keyring
from adapters.streamr.wire.message import (
    AES,
    GROUP_KEY_ERROR_RESPONSE,
    GROUP_KEY_RESPONSE,
    RSA,
    MessageID,
    StreamMessage,
)

PAIR = RsaPair(rsa.generate_private_key(65537, 1024))
PUBLISHERS = ["0xa", "0xb"]
KEYS = {f"k{number}": bytes([number]) * 32 for number in range(3)}

# What happens: somebody says something in a partition under a key (or in the clear), all requests of a publisher are
# answered or refused, time passes.
SAYS = st.tuples(st.sampled_from(PUBLISHERS), st.integers(0, 1), st.sampled_from([None, *KEYS, "unknown"]))
EVENTS = st.lists(
    st.tuples(st.just("say"), SAYS)
    | st.tuples(st.just("answer"), st.sampled_from(PUBLISHERS))
    | st.tuples(st.just("refuse"), st.sampled_from(PUBLISHERS))
    | st.tuples(st.just("pass"), st.sampled_from([1_000, KEY_WAIT, FAILURE_MEMORY])),
    max_size=30,
)


class DecryptingReader:
    """The gateway as a reader, and what it was given and said."""

    def __init__(self, path: Path) -> None:
        self.now = 1_000_000
        self.requests: list[tuple[str, KeyRequest]] = []
        self.taken: dict[tuple[str, int], list[int]] = {}
        self.said: dict[tuple[str, int], list[int]] = {}
        self.opened = self.counted = self.number = 0
        work: Callable[..., None] = lambda call, done: done(call())  # noqa: E731
        self.decryptor = Decryptor(
            Keyring(path, [], work), work, lambda: self.now, self._asked, lambda _stream, _address: True, self._count
        )

    def _asked(self, request: KeyRequest, publisher: str) -> None:
        self.requests.append((publisher, request))

    def _count(self, _what: str) -> None:
        self.counted += 1

    def say(self, publisher: str, partition: int, key: str | None) -> None:
        self.number += 1
        lane, number = (publisher, partition), self.number
        text = json.dumps({"n": number})
        message = StreamMessage(MessageID("s", partition, self.now, number, publisher, "c"), text)
        if key is not None:
            sealed = aes_encrypt(text.encode(), KEYS.get(key, b"?" * 32), number.to_bytes(16))
            message = StreamMessage(message.id, sealed, encryption_type=AES, group_key_id=key)

        def hear(heard: StreamMessage) -> None:
            self.said.setdefault(lane, []).append(number)
            assert heard.content in (text, message.content)
            self.opened += heard.content == text

        self.taken.setdefault(lane, []).append(number)
        self.decryptor.submit(message, hear, lambda _error: None)

    def answer(self, publisher: str, *, refuse: bool = False) -> None:
        mine = [request for asked, request in self.requests if asked == publisher]
        self.requests = [entry for entry in self.requests if entry[0] != publisher]
        for request in mine:
            found = [[id, rsa_encrypt(KEYS[id], request.public_key)] for id in request.ids if id in KEYS]
            content: list[Any] = [request.request_id, "s", found]
            kind = GROUP_KEY_RESPONSE
            if refuse:
                content, kind = [request.request_id, "s", "CODE", "no", list(request.ids)], GROUP_KEY_ERROR_RESPONSE
            message_id = MessageID("SYSTEM/keyexchange/0xme", 0, self.now, 0, publisher, "c")
            encryption = 0 if refuse else RSA
            self.decryptor.receive(StreamMessage(message_id, json.dumps(content), None, kind, encryption))

    def wait(self, ms: int) -> None:
        self.now += ms
        self.decryptor.tick(self.now)


@contextmanager
def world() -> Iterator[DecryptingReader]:
    with TemporaryDirectory() as folder, mock.patch.object(decrypt, "RsaPair", return_value=PAIR):
        yield DecryptingReader(Path(folder) / "keys")


def play(events: list[Any], found: DecryptingReader) -> None:
    for what, about in events:
        match what:
            case "say":
                found.say(*about)
            case "answer":
                found.answer(about)
            case "refuse":
                found.answer(about, refuse=True)
            case "pass":
                found.wait(about)
        for lane, numbers in found.said.items():
            assert numbers == found.taken[lane][: len(numbers)], "in the order it came, and once"


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_accepted_messages_are_published_once_in_order(events: list[Any]) -> None:
    with world() as found:
        play(events, found)
        for _ in range(len(events) + 1):  # one key after the other is given up
            found.wait(KEY_WAIT)
        assert found.said == found.taken
        assert found.decryptor._held.oldest is None


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_accepted_messages_are_published_once_under_limits_and_at_a_stop(events: list[Any]) -> None:
    with mock.patch.object(held_messages, "MAX_HELD", 2), world() as found:
        play(events, found)
        assert found.decryptor._held._count <= 2
        found.decryptor.release_all()
        assert found.said == found.taken


@settings(max_examples=60, deadline=None)
@given(st.lists(SAYS.filter(lambda says: says[2] != "unknown"), max_size=20))
def test_with_every_key_all_messages_are_decrypted(said: list[Any]) -> None:
    with world() as found:
        for says in said:
            found.say(*says)
        while found.requests:
            for publisher in PUBLISHERS:
                found.answer(publisher)
        assert found.said == found.taken
        assert (found.opened, found.counted) == (len(said), 0)
