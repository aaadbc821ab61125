"""Key-exchange streams: group-key messages go from Streamr peer to Streamr peer, and nowhere else.

They are never bridged, never logged, and not on the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from adapters.streamr.wire import message as kinds
from gateway.core.errors import NotSubscribed

if TYPE_CHECKING:
    from adapters.streamr.wire.message import StreamMessage
    from gateway.core.principal import Principal

Principals = tuple["Principal", ...]


class KeyListener(Protocol):
    """A session that can listen to key exchanges; *form_key* names the versions that it speaks."""

    form_key: str

    def put(self, form: bytes) -> None:
        """Queue a frame."""


class KeyExchange:
    """The sessions that listen to the key-exchange stream of each address.

    *frame* makes the frame of a message for a form key, or None if that version cannot carry it. *elsewhere* sends a
    message to the other gateways of the cluster.
    """

    def __init__(
        self, frame: Callable[[StreamMessage, str], bytes | None], elsewhere: Callable[[StreamMessage], None]
    ) -> None:
        self.elsewhere = elsewhere
        self._frame = frame
        self._gateway: Callable[[StreamMessage, str], None] = lambda _message, _address: None
        self._listeners: dict[str, dict[KeyListener, None]] = {}
        self._addresses: dict[KeyListener, dict[str, Principals]] = {}

    def connect_gateway(self, receive: Callable[[StreamMessage, str], None]) -> None:
        """Call *receive* with every message sent from now on and its address: the gateway has addresses too."""
        self._gateway = receive

    def subscribe(self, session: KeyListener, address: str, principals: Principals) -> None:
        """Send *session*, which has shown a session token of *address*, what is sent there.

        *principals* are those of whose rights one has to last.
        """
        self._addresses.setdefault(session, {})[address] = principals
        self._listeners.setdefault(address, {})[session] = None

    def unsubscribe(self, session: KeyListener, address: str) -> None:
        """Stop sending *session* what is sent to *address*; raises `NotSubscribed`."""
        listeners = self._listeners.get(address, {})
        if session not in listeners:
            raise NotSubscribed(address)
        del listeners[session], self._addresses[session][address]
        if not listeners:
            del self._listeners[address]

    def principals(self, session: KeyListener) -> Iterable[Principals]:
        """The principals of each subscription of *session*; one of each has to have some right."""
        return self._addresses.get(session, {}).values()

    def remove(self, session: KeyListener) -> None:
        """End every subscription of *session*, which is closed."""
        for address in list(self._addresses.get(session, ())):
            self.unsubscribe(session, address)
        self._addresses.pop(session, None)

    def send(self, message: StreamMessage, address: str) -> None:
        """Deliver *message* to all who listen to *address*, its sender among them, as the broker does."""
        self.deliver(message, self._listeners.get(address, ()))
        self._gateway(message, address)
        self.elsewhere(message)

    def receive(self, message: StreamMessage, address: str) -> None:
        """Deliver *message*, which was sent at another gateway; that one answers requests for the gateways' keys."""
        self.deliver(message, self._listeners.get(address, ()))
        if message.message_type != kinds.GROUP_KEY_REQUEST:
            self._gateway(message, address)

    def deliver(self, message: StreamMessage, sessions: Iterable[KeyListener]) -> None:
        """Deliver *message* to *sessions*, each in its versions."""
        frames: dict[str, bytes | None] = {}
        for session in sessions:
            if session.form_key not in frames:
                frames[session.form_key] = self._frame(message, session.form_key)
            made = frames[session.form_key]
            if made is not None:
                session.put(made)
