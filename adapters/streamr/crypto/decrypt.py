"""The gateway as a subscriber of encrypted streams: it asks for group keys, and opens what they were used for.

Laws of this file. Whatever is taken is said: opened, or after `HOLD` as it came. What one publisher says in one
partition is said in the order it came, so what follows a message that waits for its key waits as well, and nothing
else does. What waits is bounded; beyond that whoever waits with most is given up. A key is believed if its publisher
signed for it: an answer by who was asked, an announce by who publishes on the stream. RSA is done in the worker.
See S0, GroupKeyRequest and the types after it.
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
from gateway.core.bounded import BoundedMap
from gateway.core.session import Session

from .encryption import KEY_BYTES, RsaPair, aes_decrypt
from .group_keys import (
    MAX_ID,
    GroupKey,
    KeyAnnounce,
    KeyMessage,
    KeyRefusal,
    KeyRequest,
    KeyResponse,
    SealedKey,
    key_bytes,
    parse_key_message,
    parse_new_key,
    sized,
)
from .held import Held, Lane, Lanes, Refuse, Say
from .keyring import Keyring, Owner
from .saved import Work

HOLD = 8_000  # ms that a message waits for its key; genuine publishers answer in one second, three when all is busy
ASK_AGAIN = 2_000  # ms after which a request that nobody answered is sent again
FORGET = 60_000  # ms for which nothing waits for a publisher that gave no key
MAX_WANTED = 4_096  # keys that are asked for, or could not be had lately
MAX_UNSEALING = 64  # messages with keys in the worker at a time

# What is counted: a message that is bridged as it came, and a group-key message that is not for the gateway.
UNDECRYPTED, IGNORED = "undecrypted", "ignored"

OPENED = frozenset({kinds.AES, kinds.NEW_KEY_AND_AES})

Key = tuple[Owner, str | None]  # the name of a key; None is the one in use


@dataclass(slots=True)
class Want:
    """A key that is asked for: the id of the request, when it was first and last sent, when it was given up (ms)."""

    since: int
    request_id: str = field(default_factory=lambda: f"trellis-{secrets.token_hex(12)}")
    asked: int | None = None
    given_up: int | None = None


class Decryption:
    """Opens messages. *ask* sends a request to a publisher; *believes* tells whose keys for a stream are of use.

    *count* is told `UNDECRYPTED` and `IGNORED`. *work* is as in `gateway.adapter.Services`.
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
        self._pairing = False
        self._unsealing = 0
        self._lanes = Lanes(self._open)
        self._wanted: dict[Key, Want] = {}
        self._silent = BoundedMap[Owner, int](MAX_WANTED)  # who gave no key, and when

    def prepare(self) -> None:
        """Make the RSA key that requests need, before the first of them."""
        if self._pair is None and not self._pairing:
            self._pairing = True
            self._work(RsaPair, self._paired)

    # What is said

    def take(self, message: StreamMessage, say: Say, refuse: Refuse, bearer: Session | None = None) -> None:
        """*say* a *message* opened, now or when its key is there; as it is, when it needs none or that does not come.

        What *say* raises now is the caller's; what it raises later goes to *refuse*. *bearer* brought it.
        """
        lane = Lane(owner_of(message), message.id.stream_partition)
        if lane not in self._lanes and (opened := self._open(message)) is not None:
            say(opened)
            return
        self._lanes.hold(lane, Held(message, say, refuse, bearer))
        while self._lanes.full and (largest := self._lanes.largest) is not None:
            self._hush(largest.owner)
            self._release(largest)

    def learn(self, message: StreamMessage) -> None:
        """Take over the key in a GroupKeyRotate (S2), if the one before is known."""
        owner = owner_of(message)
        key = self._keyring.find(owner, message.group_key_id)
        if key is None or message.encryption_type != kinds.AES:
            return
        try:
            sealed = parse_new_key(aes_decrypt(message.content, key.secret).decode())
            self._learned(owner, [GroupKey(sealed.id, key_bytes(sealed.digits))])
        except (ValueError, StreamrError):
            self._count(IGNORED)

    def tick(self, now: int) -> None:
        """A second has passed: ask again, or give up."""
        for (owner, id), want in list(self._wanted.items()):
            if want.given_up is not None:
                if now >= want.given_up + FORGET:
                    del self._wanted[owner, id]
            elif now >= want.since + HOLD:
                self._give_up(owner, want)
            elif want.asked is not None and now >= want.asked + ASK_AGAIN:
                self._send(owner, id, want)
        self._silent.drop_while(lambda since: now >= since + FORGET)

    def borne(self, bearer: Session) -> int:
        """How much waits that *bearer* brought."""
        return self._lanes.borne(bearer)

    def give_up(self, bearer: Session) -> None:
        """Say what *bearer* brought, and what waits with it, as it came: the gateway is short of memory."""
        for lane in self._lanes.of(bearer):
            self._hush(lane.owner)
            self._release(lane)

    def release(self) -> None:
        """Say everything that waits: the gateway stops."""
        while (lane := self._lanes.oldest) is not None:
            self._release(lane)

    def _release(self, lane: Lane) -> None:
        for _ in range(self._lanes.release(lane)):
            self._count(UNDECRYPTED)

    # What is opened

    def _open(self, message: StreamMessage) -> StreamMessage | None:
        """*message* opened, or as it is where that cannot be; None if it has to wait for its key."""
        if message.encryption_type not in OPENED:
            return message
        owner, id = owner_of(message), message.group_key_id
        key = self._keyring.find(owner, id)
        if key is not None:
            try:
                return self._opened(message, owner, key)
            except (ValueError, StreamrError):
                pass  # where the key has no name there may be a newer one; else it is the publisher's mistake
        if (key is None or id is None) and self._awaited(owner, id):
            return None
        self._count(UNDECRYPTED)
        return message

    def _opened(self, message: StreamMessage, owner: Owner, key: GroupKey) -> StreamMessage:
        plain = aes_decrypt(message.content, key.secret)
        successor = None
        if message.encryption_type == kinds.NEW_KEY_AND_AES:  # of version 31: the next key comes before the content
            successor, plain = GroupKey(f"start:{message.id.timestamp}", sized(plain[:KEY_BYTES])), plain[KEY_BYTES:]
        elif message.new_group_key is not None:
            sealed = parse_new_key(message.new_group_key)
            successor = GroupKey(sealed.id, sized(aes_decrypt(sealed.digits, key.secret)))
        content = plain.decode()
        jsontext.check(plain)
        if successor is not None:
            self._keyring.add(owner, successor)
        return replace(message, content=content, encryption_type=kinds.NONE, group_key_id=None, new_group_key=None)

    # What is asked

    def _awaited(self, owner: Owner, id: str | None) -> bool:
        """Whether a message may wait for this key, which is asked for unless it was lately, or nobody can be asked."""
        if not owner.publisher or (id is not None and len(id) > MAX_ID):
            return False
        want = self._wanted.get((owner, id))
        if want is None:
            if len(self._wanted) >= MAX_WANTED:
                return False
            want = self._wanted[owner, id] = Want(self._clock())
            self._send(owner, id, want)
        return want.given_up is None and owner not in self._silent

    def _send(self, owner: Owner, id: str | None, want: Want) -> None:
        if self._pair is not None:
            want.asked = self._clock()
            ids = () if id is None else (id,)
            request = KeyRequest(want.request_id, owner.stream_id, self._pair.public, ids, id is not None)
            self._ask(request, owner.publisher)
        else:
            self.prepare()

    def _paired(self, pair: RsaPair | None) -> None:
        self._pair, self._pairing = pair, False
        for (owner, id), want in list(self._wanted.items()) if pair is not None else ():
            self._send(owner, id, want)

    def _give_up(self, owner: Owner, want: Want) -> None:
        want.given_up = self._clock()
        self._hush(owner)
        self._lanes.drain(owner)

    def _hush(self, owner: Owner) -> None:
        self._silent[owner] = self._clock()

    # What is answered

    def receive(self, message: StreamMessage) -> None:
        """A group-key *message* for the gateway, whose signature was checked; a `StreamrError` if it is unreadable."""
        publisher = message.id.publisher_id.lower()
        whole = message.encryption_type == kinds.RSA and not message.content.lstrip().startswith(("[", "{"))
        said = None if whole else parse_key_message(message)
        if isinstance(said, KeyRefusal) or (isinstance(said, KeyResponse) and not said.keys):
            self._refused(publisher, said.request_id)
        elif self._pair is None or self._unsealing >= MAX_UNSEALING or not self._expected(publisher, said):
            self._count(IGNORED)
        else:
            self._unsealing += 1
            self._work(partial(unseal, message, self._pair, whole=whole), partial(self._unsealed, publisher))

    def _expected(self, publisher: str, said: KeyMessage | None) -> bool:
        """Whether what *publisher* said is worth the work; None is what cannot be read before it is decrypted."""
        match said:
            case None:
                return any(owner.publisher == publisher for owner, _ in self._wanted)
            case KeyResponse():
                return self._asked_as(publisher, said.request_id) is not None
            case KeyAnnounce():
                return self._believes(said.stream_id, publisher)
        return False

    def _asked_as(self, publisher: str, request_id: str) -> Key | None:
        """The key that *publisher* was asked for by this request."""
        asked = (key for key, want in self._wanted.items() if want.request_id == request_id)
        return next((key for key in asked if key[0].publisher == publisher), None)

    def _refused(self, publisher: str, request_id: str) -> None:
        key = self._asked_as(publisher, request_id)
        if key is not None and self._wanted[key].given_up is None:
            self._give_up(key[0], self._wanted[key])

    def _unsealed(self, publisher: str, found: tuple[KeyMessage, list[GroupKey]] | None) -> None:
        self._unsealing -= 1
        said, keys = found or (None, [])
        if said is None or not self._expected(publisher, said):
            self._count(IGNORED)
            return
        owner = Owner(said.stream_id, publisher)
        if isinstance(said, KeyResponse) and (asked := self._asked_as(publisher, said.request_id)) is not None:
            self._wanted[asked].given_up = self._clock()  # whatever it gave: it is not asked the same at once again
            owner = asked[0]
        self._learned(owner, keys)

    def _learned(self, owner: Owner, keys: list[GroupKey]) -> None:
        self._silent.pop(owner)
        for key in keys:
            self._keyring.add(owner, key)
            self._wanted.pop((owner, key.id), None)
        self._lanes.drain(owner)


def owner_of(message: StreamMessage) -> Owner:
    """Whose group key the content of *message* is encrypted with."""
    return Owner(message.id.stream_id, message.id.publisher_id.lower())


def unseal(message: StreamMessage, pair: RsaPair, *, whole: bool) -> tuple[KeyMessage, list[GroupKey]] | None:
    """What a message with keys says, and its keys; None where they are not for *pair*. For the worker."""
    try:
        said = parse_key_message(message, pair.decrypt(message.content).decode() if whole else None)
        if not isinstance(said, KeyResponse | KeyAnnounce):
            return None
        return said, [GroupKey(key.id, _secret(key, pair, whole=whole)) for key in said.keys]
    except (ValueError, StreamrError):
        return None


def _secret(key: SealedKey, pair: RsaPair, *, whole: bool) -> bytes:
    return key_bytes(key.digits) if whole else sized(pair.decrypt(key.digits))
