"""Resends: a stored past, told to one connection without being in anybody's way.

Laws of this file. An answer is Resending, the messages and Resent; or NoResend; or an ErrorResponse, which may also end
what has begun: exactly one outcome for each request. Messages are read when the peer has room for them, a slice at a
time, and other output comes between slices. A resend needs a slot, and each slice a turn, as every long answer does
(`gateway.core.answer_scheduler`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from adapters.streamr.model.stored import Span
from adapters.streamr.wire.checks import MAX_INTEGER
from adapters.streamr.wire.codec import encode, encode_unicast
from adapters.streamr.wire.control import ControlType, ResendRequest, StreamResponse
from adapters.streamr.wire.errors import RESEND_FAILED
from gateway.core.answer_scheduler import MAX_WAIT, SlotState
from gateway.core.errors import RequestError, Throttled
from gateway.core.frames import text_frame

if TYPE_CHECKING:
    from adapters.streamr.forms import Forms
    from adapters.streamr.model.stored import Shows, Stored
    from adapters.streamr.wire.message import MessageRef
    from gateway.core.answer_scheduler import AnswerScheduler
    from gateway.core.message import Form, Message
    from gateway.core.outbox import Close
    from gateway.core.principal import Principal

IN_A_ROW = 4  # slices while nobody talks


class Recipient(Protocol):
    """The session that is told what a resend finds: its versions, its resends under way, and its output."""

    control: int
    message_version: int
    closing: Close | None
    resends: dict[Resending, None]

    @property
    def network(self) -> str:
        """Where it comes from."""

    def stream(self, forms: Iterator[Form]) -> None:
        """Send *forms* at the pace of the peer."""

    def failure(self, text: str, code: str, request_id: str | int) -> bytes:
        """An ErrorResponse, as a frame."""


class Resending:
    """One resend that is under way for *session*: the *messages* that answer *request*.

    It was *asked* for by somebody, and of a channel; None where it tells of none.
    It is in the session's `resends` from its beginning until its outcome is sent.
    """

    def __init__(
        self,
        session: Recipient,
        forms: Forms,
        scheduler: AnswerScheduler,
        request: ResendRequest,
        messages: Iterator[Message | None],
        asked: tuple[Principal, str] | None,
    ) -> None:
        self.asked = asked
        self._session = session
        self._forms = forms
        self._request = request
        self._messages = messages
        self._scheduler = scheduler
        self._begun = False
        session.resends[self] = None
        self._slot = self._scheduler.request_slot(session.network, self._decided)
        if self._slot.state is not SlotState.WAITING:
            self._decided()

    def end(self) -> None:
        """It is over, or nobody is there to hear it."""
        self._slot.release()

    def _decided(self) -> None:
        """There is a slot now, or will be none."""
        if self._slot.state is SlotState.REFUSED:
            self._session.stream(self._refused())
        else:
            self._turn()

    def _turn(self) -> None:
        """Let the session pull the next slice, if it is still there."""
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
                    if slices < IN_A_ROW and not self._scheduler.has_recent_messages():
                        continue
                    self._scheduler.charge(time.thread_time() - begun)
                    self._scheduler.schedule(self._turn, self._session.network)
                    return
                frames = self._shown(message)
                self._scheduler.charge(time.thread_time() - begun)
                yield from frames  # at the pace of the peer
                begun = time.thread_time()
            yield self._answer(ControlType.RESENT if self._begun else ControlType.NO_RESEND)
        except RequestError as error:
            yield self._failure(str(error))
        self._end()

    def _refused(self) -> Iterator[bytes]:
        yield self._failure(str(Throttled(MAX_WAIT)))
        self._end()

    def _end(self) -> None:
        del self._session.resends[self]
        self.end()

    def _failure(self, reason: str) -> bytes:
        return self._session.failure(f"Resend request failed: {reason}", RESEND_FAILED, self._request.request_id)

    def _shown(self, message: Message) -> list[bytes]:
        version = self._session.message_version
        row = self._forms.stored_row(message, version)
        if row is None:
            return []
        begin = [] if self._begun else [self._answer(ControlType.RESENDING)]
        self._begun = True
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


def find(stored: Stored, channel: str, request: ResendRequest, shows: Shows) -> Iterator[Message | None]:
    """The messages of *channel* that *request* asks for; of the last ones only those count that it *shows*."""
    if request.number_last is not None:
        return stored.last(channel, request.number_last, shows)
    start, end = request.from_ref, request.to_ref
    publisher = request.publisher_id.lower() if request.publisher_id else None
    return stored.between(
        channel,
        Span(
            (0, 0) if start is None else (start.timestamp, start.sequence_number or 0),
            (MAX_INTEGER, MAX_INTEGER) if end is None else _whole(end),
            publisher,
            request.msg_chain_id or None,
        ),
    )


def _whole(end: MessageRef) -> tuple[int, int]:
    """The last position that *end* means: without a sequence number, all of its millisecond."""
    return end.timestamp, MAX_INTEGER if end.sequence_number is None else end.sequence_number
