"""Key-exchange streams: group-key messages go from Streamr peer to Streamr peer, and nowhere else.

They are never bridged, never logged, and not on the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from gateway.core.errors import NotSubscribed

if TYPE_CHECKING:
    from adapters.streamr.wire.message import StreamMessage
    from gateway.core.principal import Principal

Askers = tuple["Principal", ...]


class KeyReader(Protocol):
    """A session that can listen: *form_key* names the versions that it speaks."""

    form_key: str

    def put(self, form: bytes) -> None:
        """Queue a frame."""


class KeyExchange:
    """Who listens to the key-exchange stream of which address.

    *frame* makes the form of a message with a key.
    """

    def __init__(self, frame: Callable[[StreamMessage, str], bytes | None]) -> None:
        self._frame = frame
        self._gateway: Callable[[StreamMessage, str], None] = lambda _message, _address: None
        self._listeners: dict[str, dict[KeyReader, None]] = {}
        self._addresses: dict[KeyReader, dict[str, Askers]] = {}

    def tell(self, gateway: Callable[[StreamMessage, str], None]) -> None:
        """Let *gateway* hear everything that is sent from now on, with the address: it has addresses too."""
        self._gateway = gateway

    def listen(self, session: KeyReader, address: str, askers: Askers) -> None:
        """Let *session*, which has shown a session token of *address*, hear what is sent there by right of *askers*."""
        self._addresses.setdefault(session, {})[address] = askers
        self._listeners.setdefault(address, {})[session] = None

    def ignore(self, session: KeyReader, address: str) -> None:
        """Let *session* hear it no more; `NotSubscribed` if it did not."""
        listeners = self._listeners.get(address, {})
        if session not in listeners:
            raise NotSubscribed(address)
        del listeners[session], self._addresses[session][address]
        if not listeners:
            del self._listeners[address]

    def askers(self, session: KeyReader) -> Iterable[Askers]:
        """By whose right *session* hears what it does; one of each has to have some."""
        return self._addresses.get(session, {}).values()

    def forget(self, session: KeyReader) -> None:
        """*session* is over."""
        for address in list(self._addresses.get(session, ())):
            self.ignore(session, address)
        self._addresses.pop(session, None)

    def send(self, message: StreamMessage, address: str) -> None:
        """Hand *message* to all who listen to *address*, its sender among them, as the broker does."""
        self.hand(message, self._listeners.get(address, ()))
        self._gateway(message, address)

    def hand(self, message: StreamMessage, sessions: Iterable[KeyReader]) -> None:
        """Hand *message* to *sessions*, each in its versions."""
        frames: dict[str, bytes | None] = {}
        for session in sessions:
            if session.form_key not in frames:
                frames[session.form_key] = self._frame(message, session.form_key)
            made = frames[session.form_key]
            if made is not None:
                session.put(made)
