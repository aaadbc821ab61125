"""The gateway as a participant in the key exchange: a subscriber that asks for keys, a publisher that gives them.

It subscribes as one address, and publishes as the address of each foreign sender; all are derived from its secret.
Key-exchange messages are neither on the bus nor in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from adapters.streamr.crypto.decrypt import IGNORED, UNDECRYPTED, Decryptor
from adapters.streamr.crypto.encrypt import KeyResponder
from adapters.streamr.crypto.group_keys import KeyRequest
from adapters.streamr.crypto.held_messages import Deliver, Refuse
from adapters.streamr.crypto.keyring import KEYRING_FILE, KeyOwner, Keyring
from adapters.streamr.crypto.keys import EthereumAccount
from adapters.streamr.crypto.signing import sign_message
from adapters.streamr.model.bridge_signer import next_position
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, key_exchange_id
from adapters.streamr.wire.message import MessageID, StreamMessage
from gateway.core.session import Session

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from adapters.streamr.crypto.group_keys import GroupKey
    from adapters.streamr.trust import Trust

    from .key_exchange import KeyExchange

CHAIN = "trellis"  # msgChainId of the gateway's own messages on key-exchange streams


class Participant:
    """The participant, made when the adapter starts; *known* are the group keys that were saved before.

    `address` is the one that it subscribes as.
    """

    def __init__(
        self, context: Context, trust: Trust, key_exchange: KeyExchange, known: Iterable[tuple[KeyOwner, GroupKey]]
    ) -> None:
        self._streams = context.streams
        self._services = services = context.services
        self._trust = trust
        self._key_exchange = key_exchange
        self._last = (0, 0)
        self._reader = context.own
        self.address = self._reader.address
        self._decryptor = Decryptor(
            Keyring(context.home.secrets / KEYRING_FILE, known, services.work_aside),
            services.work,
            services.bus.clock,
            self._ask,
            self._is_trusted,
            self._count,
        )
        if self._streams.decrypts_any:
            self._decryptor.prepare()
        self._key_responder = KeyResponder(
            context.bridge_signer.group_keys,
            services.work_aside,
            services.bus.clock,
            trust.account_of,
            trust.may_read,
            self._send,
        )
        key_exchange.connect_gateway(self.receive)

    def decrypt(self, message: StreamMessage, publish: Deliver, refuse: Refuse, bearer: Session | None = None) -> None:
        """Call *publish* with *message*, whose signature was checked, once it is decrypted.

        A `RequestError` that *publish* raises later goes to *refuse*. *bearer* is the session that sent it, if any.
        """
        self._decryptor.submit(message, publish, refuse, bearer)

    def waiting_size(self, session: Session) -> int:
        """The size of the messages of *session* that wait for keys, as `held_messages.MAX_HELD_SIZE` counts it."""
        return self._decryptor.held_size(session)

    def give_up(self, session: Session) -> None:
        """Publish the messages of *session* that wait for their keys, encrypted as they are."""
        self._decryptor.release_from(session)

    def learn(self, message: StreamMessage) -> None:
        """Take the new key from a GroupKeyRotate, if the gateway decrypts its stream."""
        if self._streams.decrypts(message.id.stream_id):
            self._decryptor.learn_rotation(message)

    def receive(self, message: StreamMessage, address: str) -> None:
        """Handle what was sent to the key-exchange stream of *address*, if the gateway acts as that address."""
        try:
            if address == self.address:
                self._decryptor.receive(message)
            else:
                self._key_responder.answer(message, address)
        except StreamrError:
            self._count(IGNORED)

    def tick(self, now: int) -> None:
        """Repeat requests for keys, or give them up, once a second. *now* is in ms since 1970."""
        self._decryptor.tick(now)

    def release(self) -> None:
        """Publish everything that waits, encrypted as it is: the gateway stops."""
        self._decryptor.release_all()

    def _is_trusted(self, stream: str, address: str) -> bool:
        return self._streams.decrypts(stream) and self._trust.is_publisher(stream, address)

    def _ask(self, request: KeyRequest, publisher: str) -> None:
        self._send(self._reader, publisher, kinds.GROUP_KEY_REQUEST, request.content(), None)

    def _send(self, signer: EthereumAccount, address: str, kind: int, content: str, public_key: str | None) -> None:
        """Sign *content* and send it to *address*; *public_key* is the one that its keys are encrypted with, if any."""
        # Subscribers skip a message that does not follow the one before: the gateway sends all of its own in one order.
        self._last = next_position(self._last, self._services.bus.clock())
        message_id = MessageID(key_exchange_id(address), 0, *self._last, signer.address, CHAIN)
        encryption = kinds.NONE if public_key is None else kinds.RSA
        sent = StreamMessage(message_id, content, None, kind, encryption, public_key)
        self._key_exchange.send(sign_message(sent, signer.key), address)

    def _count(self, what: str) -> None:
        if what == UNDECRYPTED:
            self._services.metrics.count("undecrypted", NAME)
        else:
            self._services.metrics.refused(NAME, "group key")
