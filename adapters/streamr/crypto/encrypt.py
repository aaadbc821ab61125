"""The gateway as a publisher on streams that require encryption: its own group keys, and who gets them.

A stream has one key for each UTC day, for all senders that the gateway signs for. It is derived from the gateway's
secret (HKDF-SHA256, RFC 5869), and so is the initialisation vector of a message (a MAC of its id and content): nothing
is stored, and the same message always has the same encrypted form. A reader is told the key's id, which contains its
day and cannot be predicted before it is used.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.message import StreamMessage
from gateway.core.jsontext import dumps

from .background_file import Work
from .ciphers import IV_BYTES, KEY_BYTES, aes_encrypt, rsa_encrypt
from .group_keys import GroupKey, KeyRefusal, KeyRequest, KeyResponse, SentGroupKey, parse_key_message
from .keys import EthereumAccount

DAY = 86_400_000  # ms that a key is used for
MAX_KEYS = 1_024  # derived keys in memory
MAX_PENDING_RESPONSES = 64  # requests in the worker at a time; a reader without a response asks again
_ID_BYTES = 16
_ID = re.compile(r"([0-9]{1,9})-[0-9a-f]{32}")


class _Derived(NamedTuple):
    key: GroupKey
    vectors: bytes  # the key of the MAC that makes initialisation vectors


class DerivedGroupKeys:
    """Gives every stream its key of each day. Safe to ask from any thread."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._derived = lru_cache(maxsize=MAX_KEYS)(self._derive)

    def of(self, stream_id: str, day: int) -> GroupKey:
        """The key of *stream_id* on a *day* (UTC days since 1970)."""
        return self._derived(stream_id, day).key

    def find(self, stream_id: str, id: str) -> GroupKey | None:
        """The key of *stream_id* called *id*; None if it is not the gateway's."""
        found = _ID.fullmatch(id)
        key = self.of(stream_id, int(found[1])) if found is not None else None
        return key if key is not None and hmac.compare_digest(key.id, id) else None

    def encrypt(self, message: StreamMessage, day: int) -> StreamMessage:
        """*message* with its content under the key of *day*; it has no signature yet."""
        key, vectors = self._derived(message.id.stream_id, day)
        plain = message.content.encode()
        iv = hmac.digest(vectors, dumps(list(message.id)) + b"\n" + plain, "sha256")[:IV_BYTES]
        content = aes_encrypt(plain, key.secret, iv)
        return replace(message, content=content, encryption_type=kinds.AES, group_key_id=key.id)

    def _derive(self, stream_id: str, day: int) -> _Derived:
        info = b"trellis streamr group key " + dumps([stream_id, day])
        derived = HKDF(SHA256(), KEY_BYTES + _ID_BYTES + KEY_BYTES, salt=None, info=info).derive(self._secret)
        secret, id, vectors = derived[:KEY_BYTES], derived[KEY_BYTES:-KEY_BYTES], derived[-KEY_BYTES:]
        return _Derived(GroupKey(f"{day}-{id.hex()}", secret), vectors)


class KeyResponder:
    """Responds to requests for the gateway's group keys.

    *signer* finds who of them has an address on a stream, None if nobody; *may_read* tells whether an address may
    subscribe to a stream; *send* signs a message of a type, with a content and perhaps encrypted for a public key, as
    one of them to an address. *work* is `work_aside` of `gateway.adapter.Services`.
    """

    def __init__(
        self,
        keys: DerivedGroupKeys,
        work: Work,
        clock: Callable[[], int],
        signer: Callable[[str, str], EthereumAccount | None],
        may_read: Callable[[str, str], bool],
        send: Callable[[EthereumAccount, str, int, str, str | None], None],
    ) -> None:
        self._keys = keys
        self._work = work
        self._clock = clock
        self._signer = signer
        self._may_read = may_read
        self._send = send
        self._pending = 0

    def answer(self, message: StreamMessage, address: str) -> bool:
        """Answer a request to *address*, whose signature was checked; False if *address* is not the gateway's.

        Raises `StreamrError` if the request cannot be parsed.
        """
        if message.message_type != kinds.GROUP_KEY_REQUEST:
            return False
        request = parse_key_message(message)
        assert isinstance(request, KeyRequest)
        signer = self._signer(request.stream_id, address)
        if signer is None:
            return False
        requester = message.id.publisher_id.lower()
        keys = {id: self._keys.find(request.stream_id, id) for id in request.ids}
        if not self._may_read(request.stream_id, requester):
            self._refuse(signer, requester, request, "PERMISSION_DENIED", "you may not subscribe to this stream")
            return True
        if unknown := tuple(id for id, key in keys.items() if key is None):
            unknown_only = replace(request, ids=unknown)
            self._refuse(signer, requester, unknown_only, "UNKNOWN_GROUP_KEY", "this publisher has no such group key")
        found = [key for key in keys.values() if key is not None] if request.has_key_ids else [self._current(request)]
        if found and self._pending < MAX_PENDING_RESPONSES:
            self._pending += 1
            self._work(
                partial(encrypt_keys, found, request.public_key),
                partial(self._keys_encrypted, signer, requester, request),
            )
        return True

    def _current(self, request: KeyRequest) -> GroupKey:
        return self._keys.of(request.stream_id, self._clock() // DAY)

    def _keys_encrypted(
        self, signer: EthereumAccount, requester: str, request: KeyRequest, keys: tuple[SentGroupKey, ...] | None
    ) -> None:
        self._pending -= 1
        if keys is None:
            self._refuse(
                signer, requester, request, "INVALID_GROUP_KEY_REQUEST", "the public key is not an RSA key in PEM"
            )
            return
        response = KeyResponse(request.request_id, request.stream_id, keys)
        start = self._clock() // DAY * DAY
        content = response.content() if request.has_key_ids else response.content_without_ids(start)
        self._send(signer, requester, kinds.GROUP_KEY_RESPONSE, content, request.public_key)

    def _refuse(self, signer: EthereumAccount, requester: str, request: KeyRequest, code: str, text: str) -> None:
        refusal = KeyRefusal(request.request_id, request.stream_id, code, text, request.ids)
        self._send(signer, requester, kinds.GROUP_KEY_ERROR_RESPONSE, refusal.content(), None)


def encrypt_keys(keys: list[GroupKey], public_key: str) -> tuple[SentGroupKey, ...] | None:
    """*keys* encrypted for the owner of *public_key*; None if that is not a valid key. It is run by the worker."""
    try:
        return tuple(SentGroupKey(key.id, rsa_encrypt(key.secret, public_key)) for key in keys)
    except ValueError:
        return None
