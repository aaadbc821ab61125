"""Resends: stored messages, sent to one connection without delaying the others.

Laws of this file. An answer is Resending, the messages and Resent; or NoResend; or an ErrorResponse, which may also end
an answer that has begun: each request has exactly one outcome. Messages are read when the peer has room for them, a
slice at a time, and other output goes between slices. A resend needs a slot, and each slice a turn, like every long
answer (`gateway.core.answer_scheduler`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from adapters.streamr.message_forms import WITH_ID
from adapters.streamr.model.stored import MessageRange
from adapters.streamr.wire.checks import MAX_INTEGER
from adapters.streamr.wire.codec import encode, encode_unicast
from adapters.streamr.wire.control import ControlType, ResendRequest, StreamResponse
from adapters.streamr.wire.errors import RESEND_FAILED
from gateway.core.answer_scheduler import MAX_WAIT_SECONDS, SlotState
from gateway.core.errors import RequestError, Throttled
from gateway.core.frames import text_frame

if TYPE_CHECKING:
    from adapters.streamr.message_forms import Forms
    from adapters.streamr.model.stored import MessageFilter, StoredMessages
    from adapters.streamr.wire.message import MessageRef
    from gateway.core.answer_scheduler import AnswerScheduler
    from gateway.core.message import Form, Message
    from gateway.core.outbox import Close
    from gateway.core.principal import Principal

IDLE_SLICES = 4  # slices in one turn while no other connection is active


class Recipient(Protocol):
    """The session that a resend goes to: its versions, its active resends, and its output."""

    control: int
    message_version: int
    form_key: str
    closing: Close | None
    resends: dict[ActiveResend, None]

    @property
    def network(self) -> str:
        """The network that it connects from."""

    def stream(self, forms: Iterator[Form]) -> None:
        """Send *forms* as fast as the peer reads them."""

    def error_frame(self, text: str, code: str, request_id: str | int) -> bytes:
        """An ErrorResponse, as a frame."""


class ActiveResend:
    """A resend in progress: it sends *session* the *messages* that answer *request*.

    *authorization* is the principal that may read it, and the channel; None if nothing is stored of what it asks for.
    It is in the session's `resends` until its outcome is sent.
    """

    def __init__(
        self,
        session: Recipient,
        forms: Forms,
        scheduler: AnswerScheduler,
        request: ResendRequest,
        messages: Iterator[Message | None],
        authorization: tuple[Principal, str] | None,
    ) -> None:
        self.authorization = authorization
        self._session = session
        self._forms = forms
        self._request = request
        self._messages = messages
        self._scheduler = scheduler
        self._started = False
        session.resends[self] = None
        self._slot = self._scheduler.request_slot(session.network, self._slot_decided)
        if self._slot.state is not SlotState.WAITING:
            self._slot_decided()

    def release(self) -> None:
        """Release its slot: it is over, or its session is."""
        self._slot.release()

    def _slot_decided(self) -> None:
        """Start, or answer with an error: a slot was given or refused."""
        if self._slot.state is SlotState.REFUSED:
            self._session.stream(self._refused())
        else:
            self._stream_slice()

    def _stream_slice(self) -> None:
        """Let the session pull the next slice, unless it is closing."""
        if self in self._session.resends and self._session.closing is None:
            self._session.stream(self._slice())

    def _slice(self) -> Iterator[bytes]:
        slices, begun = 0, time.thread_time()
        try:
            for message in self._messages:
                if self._session.closing is not None:
                    return
                if message is None:
                    slices += 1
                    if slices < IDLE_SLICES and not self._scheduler.has_recent_messages():
                        continue
                    self._scheduler.charge(time.thread_time() - begun)
                    self._scheduler.schedule(self._stream_slice, self._session.network)
                    return
                frames = self._frames(message)
                self._scheduler.charge(time.thread_time() - begun)
                yield from frames  # as fast as the peer reads
                begun = time.thread_time()
            yield self._answer(ControlType.RESENT if self._started else ControlType.NO_RESEND)
        except RequestError as error:
            yield self._failure(str(error))
        self._end()

    def _refused(self) -> Iterator[bytes]:
        yield self._failure(str(Throttled(MAX_WAIT_SECONDS)))
        self._end()

    def _end(self) -> None:
        del self._session.resends[self]
        self.release()

    def _failure(self, reason: str) -> bytes:
        return self._session.error_frame(f"Resend request failed: {reason}", RESEND_FAILED, self._request.request_id)

    def _frames(self, message: Message) -> list[bytes]:
        version = self._session.message_version
        row = self._forms.encode_stored(message, version, with_id=self._session.form_key == WITH_ID)
        if row is None:
            return []
        begin = [] if self._started else [self._answer(ControlType.RESENDING)]
        self._started = True
        return [*begin, text_frame(encode_unicast(self._session.control, self._request.request_id, row))]

    def _answer(self, kind: ControlType) -> bytes:
        asked = self._request
        answer = StreamResponse(
            type=kind,
            stream_id=asked.stream_id,
            stream_partition=asked.stream_partition,
            request_id=asked.request_id,
        )
        return text_frame(encode(answer, self._session.control))


def find_messages(
    stored: StoredMessages, channel: str, request: ResendRequest, shows: MessageFilter
) -> Iterator[Message | None]:
    """The messages of *channel* that *request* asks for; "last n" counts only those that *shows* accepts."""
    if request.number_last is not None:
        return stored.last(channel, request.number_last, shows)
    start, end = request.from_ref, request.to_ref
    publisher = request.publisher_id.lower() if request.publisher_id else None
    return stored.between(
        channel,
        MessageRange(
            (0, 0) if start is None else (start.timestamp, start.sequence_number or 0),
            (MAX_INTEGER, MAX_INTEGER) if end is None else _end_position(end),
            publisher,
            request.msg_chain_id or None,
        ),
    )


def _end_position(end: MessageRef) -> tuple[int, int]:
    """The last position that *end* includes: without a sequence number, all of its millisecond."""
    return end.timestamp, MAX_INTEGER if end.sequence_number is None else end.sequence_number
