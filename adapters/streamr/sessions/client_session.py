"""What every Streamr connection has: the versions in which it is answered, and the users whose tokens it showed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.streamr.model.users import User
from adapters.streamr.publishing.saying import charge
from adapters.streamr.wire.codec import FORM_KEYS, encode
from adapters.streamr.wire.control import (
    ClientRequest,
    ControlFrame,
    ControlType,
    ErrorResponse,
    StreamResponse,
    SubscribeRequest,
    UnsubscribeRequest,
)
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.invalid import Forged, Invalid
from adapters.streamr.wire.refusals import refusal
from gateway.core.errors import RequestError
from gateway.core.frames import text_frame
from gateway.core.message import Peer
from gateway.core.principal import Principal
from gateway.core.session import Session

if TYPE_CHECKING:
    from adapters.streamr.parts import Parts

MAX_TOKENS = 64  # tokens and keys that one connection may show: a node carries the requests of several users

# The message version of a peer that negotiates none: S1 has only 30, S0 and S2 only 32.
UNNEGOTIATED = {1: 30, 2: 32}


class ClientSession(Session):
    """A connected client that asked for *versions*, of control frames and messages; its first frame tells the rest."""

    protocol = NAME
    text = True
    echo = True

    def __init__(
        self, parts: Parts, principal: Principal, versions: tuple[int | None, int | None], max_outbox: int
    ) -> None:
        super().__init__(parts.context.bus, principal)
        self.max_outbox = max_outbox
        self._parts = parts
        self._asked = versions
        self._negotiated = None not in versions
        self._speak(versions[0] or 2)
        self._users: dict[str, User] = {}  # by the tokens and keys that it showed; it ends with any of them

    def tick(self, now: int) -> None:  # noqa: ARG002  (tokens and keys have a clock of their own)
        """A second has passed. What a session token or a key gave to this connection ends with it."""
        if self._users and any(self._parts.trust.user(token) is None for token in self._users):
            self.close(1008, "a session token or API key of this connection is over; log in again")

    # Who asks

    def asker(self, request: ClientRequest) -> User:
        """Whose token or key the *request* carries; the connection's own principal without one."""
        self._identify(request)
        return self._parts.trust.asker((request.session_token, request.api_key), self.principal)

    def charge(self, author: Peer) -> None:
        """Raise `Throttled` where *author*, who signed what this connection carries, says too much."""
        charge(self.bus, self.who, author)

    def stays(self, request: ClientRequest) -> bool:
        """Whether *request* shows nobody's token or key that this connection has not shown before."""
        token = request.session_token
        return not token or token in self._users or self._parts.trust.user(token) is None

    @property
    def user(self) -> User | None:
        """Whose session tokens and keys the connection has shown; None where that is nobody, or more than one."""
        return next(iter(self._users.values()), User(self.principal)) if self.identity is not None else None

    @property
    def address(self) -> str | None:
        """The Ethereum address whose session token the connection has shown."""
        return self.who.identity if self.who.protocol == NAME else None

    def _identify(self, request: ClientRequest) -> None:
        """Take the connection for the user of the request's session token or key, if it carries one.

        Nothing else does that but a key in the connection's URL. With a second user it is a link, and nobody's.
        """
        for token in (request.session_token, request.api_key):
            if not token or token in self._users or (user := self._parts.trust.user(token)) is None:
                continue
            if len(self._users) >= MAX_TOKENS:
                raise Invalid(f"not more than {MAX_TOKENS} session tokens and keys on one connection")
            self._users[token] = user
            if (peer := user.peer(self.bus.peers)) is not None:
                self.bus.bind(self, peer)

    # How it is answered

    def refuse(self, frame: ControlFrame, error: RequestError) -> None:
        """Answer *frame* with the *error*; a forged signature counts as input that the protocol has no place for."""
        if isinstance(error, Forged):
            self.record_malformed()
        self.send(self.failure(*refusal(frame, error), frame.request_id))

    def failure(self, text: str, code: str, request_id: str | int) -> bytes:
        """An ErrorResponse, as a frame."""
        return text_frame(
            encode(ErrorResponse(error_message=text, error_code=code, request_id=request_id), self.control)
        )

    def _answer(self, kind: ControlType, request: SubscribeRequest | UnsubscribeRequest) -> None:
        where = request.stream_id, request.stream_partition
        answer = StreamResponse(type=kind, stream_id=where[0], stream_partition=where[1], request_id=request.request_id)
        self.send(text_frame(encode(answer, self.control)))

    def _speak(self, control: int, message: int | None = None) -> None:
        """Use these versions where the peer did not ask for others."""
        self.control = self._asked[0] or control
        self.message_version = self._asked[1] or message or UNNEGOTIATED[self.control]
        self.form_key = FORM_KEYS[self.control, self.message_version]
