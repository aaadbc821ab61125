"""The gateway's own part in the key exchange: as a reader it asks for keys, as a publisher it gives them.

It reads as one address, and publishes as the address of each foreign sender; all are derived from its secret. Nothing
of this is on the bus or in the log.
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
from adapters.streamr.model.author import after
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, key_exchange_id
from adapters.streamr.wire.message import MessageID, StreamMessage
from gateway.core.session import Session

if TYPE_CHECKING:
    from adapters.streamr.context import Context
    from adapters.streamr.crypto.group_keys import GroupKey
    from adapters.streamr.trust import Trust

    from .exchange import KeyExchange

CHAIN = "trellis"  # msgChainId of what the gateway says on key-exchange streams


class Participant:
    """Made when the adapter starts, with the group keys that were *known* before.

    *address* is by what name it reads.
    """

    def __init__(
        self, context: Context, trust: Trust, exchange: KeyExchange, known: Iterable[tuple[KeyOwner, GroupKey]]
    ) -> None:
        self._streams = context.streams
        self._services = services = context.services
        self._trust = trust
        self._exchange = exchange
        self._last = (0, 0)
        self._reader = context.own
        self.address = self._reader.address
        self._decryptor = Decryptor(
            Keyring(context.home.secrets / KEYRING_FILE, known, services.work),
            services.work,
            services.bus.clock,
            self._ask,
            self._believes,
            self._count,
        )
        if self._streams.reading:
            self._decryptor.prepare()
        self._giver = KeyResponder(
            context.author.group_keys, services.work, services.bus.clock, trust.signer, trust.may_read, self._send
        )
        exchange.tell(self.hear)

    def say(self, message: StreamMessage, say: Deliver, refuse: Refuse, bearer: Session | None = None) -> None:
        """*say* a *message* of a stream that the gateway reads, whose signature was checked, as soon as it is open.

        What *say* raises later goes to *refuse*. *bearer* is the session that brought it, if one did.
        """
        self._decryptor.submit(message, say, refuse, bearer)

    def borne(self, bearer: Session) -> int:
        """How much waits that *bearer* brought."""
        return self._decryptor.held_size(bearer)

    def give_up(self, bearer: Session) -> None:
        """What *bearer* brought waits no more."""
        self._decryptor.release_from(bearer)

    def learn(self, message: StreamMessage) -> None:
        """Look at a GroupKeyRotate that passes."""
        if self._streams.decrypts(message.id.stream_id):
            self._decryptor.learn_rotation(message)

    def hear(self, message: StreamMessage, address: str) -> None:
        """Look at what was sent to the key-exchange stream of *address*; perhaps that is one of ours."""
        try:
            if address == self.address:
                self._decryptor.receive(message)
            else:
                self._giver.answer(message, address)
        except StreamrError:
            self._count(IGNORED)

    def tick(self, now: int) -> None:
        """A second has passed."""
        self._decryptor.tick(now)

    def release(self) -> None:
        """The gateway stops: whatever waits is said as it is."""
        self._decryptor.release_all()

    def _believes(self, stream: str, address: str) -> bool:
        return self._streams.decrypts(stream) and self._trust.publishes(stream, address)

    def _ask(self, request: KeyRequest, publisher: str) -> None:
        self._send(self._reader, publisher, kinds.GROUP_KEY_REQUEST, request.content(), None)

    def _send(self, signer: EthereumAccount, address: str, kind: int, content: str, public_key: str | None) -> None:
        """Sign *content* and send it to *address*; *public_key* is whom its keys are encrypted for."""
        # Readers pass over what does not come after what they had: all that the gateway says is in one order.
        self._last = after(self._last, self._services.bus.clock())
        message_id = MessageID(key_exchange_id(address), 0, *self._last, signer.address, CHAIN)
        encryption = kinds.NONE if public_key is None else kinds.RSA
        said = StreamMessage(message_id, content, None, kind, encryption, public_key)
        self._exchange.send(sign_message(said, signer.key), address)

    def _count(self, what: str) -> None:
        if what == UNDECRYPTED:
            self._services.metrics.count("undecrypted", NAME)
        else:
            self._services.metrics.count("refused", NAME, "group key")
