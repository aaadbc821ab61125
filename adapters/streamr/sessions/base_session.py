"""What every Streamr connection has: the versions in which it is answered, and the users whose tokens it showed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.streamr.model.users import User
from adapters.streamr.publishing.publish_handler import pace_author
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
from adapters.streamr.wire.refusals import refusal
from adapters.streamr.wire.validation_errors import InvalidMessage, InvalidSignature
from gateway.core.errors import RequestError
from gateway.core.frames import text_frame
from gateway.core.message import Peer
from gateway.core.principal import Principal
from gateway.core.session import Session

from .shown_tokens import MAX_TOKENS, ShownTokens

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts

# By control version, the message version of a peer that negotiates none: S1 has only 30, S0 and S2 only 32.
DEFAULT_MESSAGE_VERSIONS = {1: 30, 2: 32}


class BaseSession(Session):
    """A connected client that asked for *versions* of control frames and of messages.

    Where it asked for none, its first frame decides.
    """

    protocol = NAME
    text = True
    echo = True

    def __init__(
        self, parts: StreamrParts, principal: Principal, versions: tuple[int | None, int | None], max_outbox: int
    ) -> None:
        super().__init__(parts.context.bus, principal)
        self.max_outbox = max_outbox
        self._parts = parts
        self._requested_versions = versions
        self._negotiated = None not in versions
        self._set_versions(versions[0] or 2)
        self._shown = ShownTokens(parts.trust, parts.context.logins)
        self._users = self._shown.users

    def tick(self, now: int) -> None:
        """Called once a second: close the connection if a token or key that it showed is not valid any more."""
        if self._users and self._shown.any_ended(now):
            self.close(1008, "a session token or API key of this connection is over; log in again")

    # Authentication

    def authenticate(self, request: ClientRequest) -> User:
        """The user of the token or key that *request* carries; the connection's own principal without one.

        Raises `Unauthenticated` if it is not valid.
        """
        if not (request.session_token or request.api_key):
            return User(self.principal)
        self._identify(request)
        return self._parts.trust.authenticate((request.session_token, request.api_key), self.principal)

    def pace_author(self, author: Peer) -> None:
        """Raise `Throttled` if *author*, who signed a message that this connection sends, exceeds the rate limit."""
        pace_author(self.bus, self.who, author)

    def adds_user(self, request: ClientRequest) -> bool:
        """Whether *request* carries a valid session token that this connection has not shown before."""
        token = request.session_token
        return False if not token or token in self._users else self._parts.trust.user_of_token(token) is not None

    @property
    def user(self) -> User | None:
        """The user of the session tokens and keys that the connection has shown; None if there is not exactly one."""
        return next(iter(self._users.values()), User(self.principal)) if self.identity is not None else None

    @property
    def address(self) -> str | None:
        """The Ethereum address whose session token the connection has shown."""
        return self.who.identity if self.who.protocol == NAME else None

    def _identify(self, request: ClientRequest) -> None:
        """Bind the connection to the user of the request's session token or key, if it carries one.

        Apart from that, only a key in the connection's URL binds it. A second user makes it a link, which is bound to
        nobody.
        """
        for token in (request.session_token, request.api_key):
            if not token or token in self._users or (user := self._parts.trust.user_of_token(token)) is None:
                continue
            if len(self._users) >= MAX_TOKENS:
                raise InvalidMessage(f"not more than {MAX_TOKENS} session tokens and keys on one connection")
            self._shown.add(token, user)
            if (peer := user.peer(self.bus.peers)) is not None:
                self.bus.bind(self, peer)

    # Answers

    def refuse(self, frame: ControlFrame, error: RequestError) -> None:
        """Answer *frame* with the *error*; a forged signature counts as malformed input."""
        if isinstance(error, InvalidSignature):
            self.record_malformed()
        text, code = refusal(frame, error)
        self.send(self.error_frame(text, code, frame.request_id))
        self.record_refusal(code, text)

    def error_frame(self, text: str, code: str, request_id: str | int) -> bytes:
        """An ErrorResponse, as a frame."""
        return text_frame(
            encode(ErrorResponse(error_message=text, error_code=code, request_id=request_id), self.control)
        )

    def _answer(self, kind: ControlType, request: SubscribeRequest | UnsubscribeRequest) -> None:
        where = request.stream_id, request.stream_partition
        answer = StreamResponse(type=kind, stream_id=where[0], stream_partition=where[1], request_id=request.request_id)
        self.send(text_frame(encode(answer, self.control)))

    def _set_versions(self, control: int, message: int | None = None) -> None:
        """Use these versions for what the peer did not ask for itself."""
        self.control = self._requested_versions[0] or control
        self.message_version = self._requested_versions[1] or message or DEFAULT_MESSAGE_VERSIONS[self.control]
        self.form_key = FORM_KEYS[self.control, self.message_version]
