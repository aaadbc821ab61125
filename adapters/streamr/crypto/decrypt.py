"""The gateway as a subscriber of encrypted streams: it asks for group keys, and decrypts messages.

Every message that is submitted is delivered: decrypted, or encrypted once `KEY_WAIT` is over. The messages of one
publisher in one partition are delivered in the order in which they came, so those that follow a held message are held
as well, and no others. What is held is bounded; beyond the bound the largest queue is delivered encrypted. A key is
accepted only with its publisher's signature: a response from the publisher that was asked, an announcement from an
address that publishes on the stream. RSA is left to the worker thread.

Source: S0, GroupKeyRequest and the types after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import StreamMessage
from gateway.core import jsontext
from gateway.core.bounded_maps import BoundedMap
from gateway.core.session import Session

from .background_file import Work
from .ciphers import KEY_BYTES, RsaPair, aes_decrypt
from .group_keys import (
    MAX_ID,
    GroupKey,
    KeyAnnounce,
    KeyMessage,
    KeyRefusal,
    KeyRequest,
    KeyResponse,
    SentGroupKey,
    checked_key,
    decode_group_key,
    parse_key_message,
    parse_new_key,
)
from .held_messages import Deliver, HeldMessage, HeldMessages, QueueKey, Refuse
from .keyring import KeyOwner, Keyring

KEY_WAIT = 8_000  # ms that a message waits for its key; genuine publishers answer in one second, under load in three
RETRY_INTERVAL = 2_000  # ms after which an unanswered request is sent again
FAILURE_MEMORY = 60_000  # ms during which no message waits for a publisher that gave no key
MAX_KEY_REQUESTS = 4_096  # pending and recently failed ones
MAX_DECRYPTING = 64  # key messages in the worker at a time

# What is counted: a message that is bridged encrypted, and a group-key message that the gateway cannot use.
UNDECRYPTED, IGNORED = "undecrypted", "ignored"

ENCRYPTED = frozenset({kinds.AES, kinds.NEW_KEY_AND_AES})

KeyName = tuple[KeyOwner, str | None]  # the id of a key, None for the publisher's current one


@dataclass(slots=True)
class PendingRequest:
    """A request for a key. All times are in ms: when it was made, last sent, and when it failed."""

    created: int
    request_id: str = field(default_factory=lambda: f"trellis-{secrets.token_hex(12)}")
    sent: int | None = None
    failed: int | None = None


class Decryptor:
    """Decrypts messages, and asks publishers for the keys.

    *ask* sends a request to a publisher; *believes* tells whether to take keys for a stream from an address. *count*
    is called with `UNDECRYPTED` and `IGNORED`. *work* is that of `gateway.adapter.Services`.
    """

    def __init__(
        self,
        keyring: Keyring,
        work: Work,
        clock: Callable[[], int],
        ask: Callable[[KeyRequest, str], None],
        believes: Callable[[str, str], bool],
        count: Callable[[str], None],
    ) -> None:
        self._keyring = keyring
        self._work = work
        self._clock = clock
        self._ask = ask
        self._believes = believes
        self._count = count
        self._pair: RsaPair | None = None
        self._making_pair = False
        self._decrypting = 0
        self._held = HeldMessages(self._decrypt)
        self._requests: dict[KeyName, PendingRequest] = {}
        self._unresponsive = BoundedMap[KeyOwner, int](MAX_KEY_REQUESTS)  # who gave no key, and when

    def prepare(self) -> None:
        """Make the RSA key that requests need, before the first of them."""
        if self._pair is None and not self._making_pair:
            self._making_pair = True
            self._work(RsaPair, self._pair_made)

    # Messages

    def submit(self, message: StreamMessage, deliver: Deliver, refuse: Refuse, origin: Session | None = None) -> None:
        """Call *deliver* with the decrypted *message*, now or when its key arrives.

        A message that is not encrypted is delivered at once; one whose key does not arrive is delivered encrypted. What
        *deliver* raises now is raised here; what it raises later is given to *refuse*. *origin* brought the message.
        """
        queue = QueueKey(key_owner(message), message.id.stream_partition)
        if queue not in self._held and (decrypted := self._decrypt(message)) is not None:
            deliver(decrypted)
            return
        self._held.append(queue, HeldMessage(message, deliver, refuse, origin))
        while self._held.is_over_limit and (largest := self._held.largest) is not None:
            self._mark_unresponsive(largest.owner)
            self._release(largest)

    def learn_rotation(self, message: StreamMessage) -> None:
        """Take the key out of a GroupKeyRotate (S2), if its predecessor is known."""
        owner = key_owner(message)
        key = self._keyring.find(owner, message.group_key_id)
        if key is None or message.encryption_type != kinds.AES:
            return
        try:
            rotated = parse_new_key(aes_decrypt(message.content, key.secret).decode())
            self._add_keys(owner, [GroupKey(rotated.id, decode_group_key(rotated.hex_text))])
        except (ValueError, StreamrError):
            self._count(IGNORED)

    def tick(self, now: int) -> None:
        """A second has passed: send requests again, or give them up; write the keys that could not be written."""
        self._keyring.tick()
        for (owner, id), request in list(self._requests.items()):
            if request.failed is not None:
                if now >= request.failed + FAILURE_MEMORY:
                    del self._requests[owner, id]
            elif now >= request.created + KEY_WAIT:
                self._give_up(owner, request)
            elif request.sent is not None and now >= request.sent + RETRY_INTERVAL:
                self._send(owner, id, request)
        self._unresponsive.drop_while(lambda since: now >= since + FAILURE_MEMORY)

    def held_size(self, origin: Session) -> int:
        """The size of the held messages that *origin* brought."""
        return self._held.size_from(origin)

    def release_from(self, origin: Session) -> None:
        """Deliver what *origin* brought, and the rest of those queues, encrypted: the gateway is short of memory."""
        for queue in self._held.queues_from(origin):
            self._mark_unresponsive(queue.owner)
            self._release(queue)

    def release_all(self) -> None:
        """Deliver every held message encrypted: the gateway stops."""
        while (queue := self._held.oldest) is not None:
            self._release(queue)

    def _release(self, queue: QueueKey) -> None:
        for _ in range(self._held.release(queue)):
            self._count(UNDECRYPTED)

    # Decryption

    def _decrypt(self, message: StreamMessage) -> StreamMessage | None:
        """*message* decrypted, or unchanged if that is not possible; None if it has to wait for its key."""
        if message.encryption_type not in ENCRYPTED:
            return message
        owner, id = key_owner(message), message.group_key_id
        key = self._keyring.find(owner, id)
        if key is not None:
            try:
                return self._decrypt_with(message, owner, key)
            except (ValueError, StreamrError):
                pass  # a key without an id may have a successor; otherwise the publisher made a mistake
        if (key is None or id is None) and self._may_wait(owner, id):
            return None
        self._count(UNDECRYPTED)
        return message

    def _decrypt_with(self, message: StreamMessage, owner: KeyOwner, key: GroupKey) -> StreamMessage:
        plain = aes_decrypt(message.content, key.secret)
        successor = None
        if message.encryption_type == kinds.NEW_KEY_AND_AES:  # of version 31: the next key precedes the content
            secret, plain = checked_key(plain[:KEY_BYTES]), plain[KEY_BYTES:]
            successor = GroupKey(f"start:{message.id.timestamp}", secret)
        elif message.new_group_key is not None:
            encrypted = parse_new_key(message.new_group_key)
            successor = GroupKey(encrypted.id, checked_key(aes_decrypt(encrypted.hex_text, key.secret)))
        content = plain.decode()
        jsontext.check(plain)
        if successor is not None:
            self._keyring.add(owner, successor)
        return replace(message, content=content, encryption_type=kinds.NONE, group_key_id=None, new_group_key=None)

    # Requests

    def _may_wait(self, owner: KeyOwner, id: str | None) -> bool:
        """Whether a message may wait for this key; a request for the key is sent unless one was sent lately."""
        if not owner.publisher or (id is not None and len(id) > MAX_ID):
            return False
        request = self._requests.get((owner, id))
        if request is None:
            if len(self._requests) >= MAX_KEY_REQUESTS:
                return False
            request = self._requests[owner, id] = PendingRequest(self._clock())
            self._send(owner, id, request)
        return request.failed is None and owner not in self._unresponsive

    def _send(self, owner: KeyOwner, id: str | None, request: PendingRequest) -> None:
        if self._pair is not None:
            request.sent = self._clock()
            ids = () if id is None else (id,)
            asked = KeyRequest(request.request_id, owner.stream_id, self._pair.public, ids, id is not None)
            self._ask(asked, owner.publisher)
        else:
            self.prepare()

    def _pair_made(self, pair: RsaPair | None) -> None:
        self._pair, self._making_pair = pair, False
        for (owner, id), request in list(self._requests.items()) if pair is not None else ():
            self._send(owner, id, request)

    def _give_up(self, owner: KeyOwner, request: PendingRequest) -> None:
        request.failed = self._clock()
        self._mark_unresponsive(owner)
        self._held.drain(owner)

    def _mark_unresponsive(self, owner: KeyOwner) -> None:
        self._unresponsive[owner] = self._clock()

    # Responses

    def receive(self, message: StreamMessage) -> None:
        """Handle a group-key *message* to the gateway, with a valid signature; `StreamrError` if it is malformed."""
        publisher = message.id.publisher_id.lower()
        fully_encrypted = message.encryption_type == kinds.RSA and not message.content.lstrip().startswith(("[", "{"))
        parsed = None if fully_encrypted else parse_key_message(message)
        if isinstance(parsed, KeyRefusal) or (isinstance(parsed, KeyResponse) and not parsed.keys):
            self._refused(publisher, parsed.request_id)
        elif self._pair is None or self._decrypting >= MAX_DECRYPTING or not self._expected(publisher, parsed):
            self._count(IGNORED)
        else:
            self._decrypting += 1
            job = partial(decrypt_keys, message, self._pair, fully_encrypted=fully_encrypted)
            self._work(job, partial(self._keys_decrypted, publisher))

    def _expected(self, publisher: str, message: KeyMessage | None) -> bool:
        """Whether *message* from *publisher* is worth decrypting; it is None if it is encrypted as a whole."""
        match message:
            case None:
                return any(owner.publisher == publisher for owner, _ in self._requests)
            case KeyResponse():
                return self._requested_key(publisher, message.request_id) is not None
            case KeyAnnounce():
                return self._believes(message.stream_id, publisher)
        return False

    def _requested_key(self, publisher: str, request_id: str) -> KeyName | None:
        """The key that *publisher* was asked for by this request, None if it was not."""
        names = (name for name, request in self._requests.items() if request.request_id == request_id)
        return next((name for name in names if name[0].publisher == publisher), None)

    def _refused(self, publisher: str, request_id: str) -> None:
        name = self._requested_key(publisher, request_id)
        if name is not None and self._requests[name].failed is None:
            self._give_up(name[0], self._requests[name])

    def _keys_decrypted(self, publisher: str, found: tuple[KeyMessage, list[GroupKey]] | None) -> None:
        self._decrypting -= 1
        message, keys = found or (None, [])
        if message is None or not self._expected(publisher, message):
            self._count(IGNORED)
            return
        owner = KeyOwner(message.stream_id, publisher)
        if (
            isinstance(message, KeyResponse)
            and (name := self._requested_key(publisher, message.request_id)) is not None
        ):
            self._requests[name].failed = self._clock()  # whatever it gave: the same is not requested again at once
            owner = name[0]
        self._add_keys(owner, keys)

    def _add_keys(self, owner: KeyOwner, keys: list[GroupKey]) -> None:
        self._unresponsive.pop(owner)
        for key in keys:
            self._keyring.add(owner, key)
            self._requests.pop((owner, key.id), None)
        self._held.drain(owner)


def key_owner(message: StreamMessage) -> KeyOwner:
    """The publisher and the stream whose group key encrypts the content of *message*."""
    return KeyOwner(message.id.stream_id, message.id.publisher_id.lower())


def decrypt_keys(
    message: StreamMessage, pair: RsaPair, *, fully_encrypted: bool
) -> tuple[KeyMessage, list[GroupKey]] | None:
    """The parsed *message* and its keys; None if they are not encrypted for *pair*. It is run by the worker."""
    try:
        parsed = parse_key_message(message, pair.decrypt(message.content).decode() if fully_encrypted else None)
        if not isinstance(parsed, KeyResponse | KeyAnnounce):
            return None
        return parsed, [GroupKey(key.id, _secret(key, pair, fully_encrypted=fully_encrypted)) for key in parsed.keys]
    except (ValueError, StreamrError):
        return None


def _secret(key: SentGroupKey, pair: RsaPair, *, fully_encrypted: bool) -> bytes:
    return decode_group_key(key.hex_text) if fully_encrypted else checked_key(pair.decrypt(key.hex_text))
