"""Resends: a stored past, told to one connection without being in anybody's way.

Laws of this file. An answer is Resending, the messages and Resent; or NoResend; or an ErrorResponse, which may also end
what has begun: exactly one outcome for each request. Messages are read when the peer has room for them, a slice at a
time, and other output comes between slices. While anybody talks, the slices of all resends together get a small part of
the loop's time: after each there is a pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from gateway.errors import RequestError
from gateway.frames import text_frame

from .checks import MAX_INTEGER
from .codec import encode, encode_unicast
from .control import Answer, ControlType, Resend
from .errors import RESEND_FAILED
from .stored import Span

if TYPE_CHECKING:
    from gateway.message import Message

    from .adapter import StreamrAdapter
    from .message import MessageRef
    from .session import StreamrSession
    from .stored import Shows, Stored

PAUSE = 0.003  # seconds, at least, between two slices while somebody talks
SHARE = 10  # times as long as the last slice took: so resends have a tenth of the loop's time
IN_A_ROW = 4  # slices while nobody talks
CALM = 1_000  # ms without a message after which nobody talks


class Turns:
    """Gives every resend of a gateway its turns: at once while nobody talks, else one after each pause.

    *post* runs a call on the loop, from any thread; *next_seq* tells whether anything was said, *clock* is in ms.
    """

    def __init__(
        self, post: Callable[[Callable[[], None]], None], next_seq: Callable[[], int], clock: Callable[[], int]
    ) -> None:
        self._post = post
        self._next_seq = next_seq
        self._clock = clock
        self._last = (0, 0)  # the next sequence, and since when it is that
        self._waiting: SimpleQueue[tuple[Callable[[], None], float]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, call: Callable[[], None], taken: float = 0) -> None:
        """Run *call* on the loop when its turn has come; the last one has *taken* so many seconds."""
        if not self.talking():
            self._post(call)
            return
        self._waiting.put((call, max(PAUSE, SHARE * taken)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="resends", daemon=True)
            self._thread.start()

    def talking(self) -> bool:
        """Whether anybody has said something lately."""
        now, seq = self._clock(), self._next_seq()
        if seq != self._last[0]:
            self._last = seq, now
        return now - self._last[1] < CALM

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is gone, and so is everybody who waits for a turn
            while True:
                call, pause = self._waiting.get()
                time.sleep(pause)
                self._post(call)


class Resending:
    """One resend that is under way for *session*: the *messages* that answer *request*.

    It is in the session's `resends` from its first turn until its outcome is sent.
    """

    def __init__(
        self, session: StreamrSession, adapter: StreamrAdapter, request: Resend, messages: Iterator[Message | None]
    ) -> None:
        self._session = session
        self._adapter = adapter
        self._request = request
        self._messages = messages
        self._begun = False

    def turn(self) -> None:
        """Let the session pull the next slice, if it is still there."""
        if self in self._session.resends and self._session.closing is None:
            self._session.stream(self._slice())

    def _slice(self) -> Iterator[bytes]:
        begun, slices = time.thread_time(), 0
        try:
            for message in self._messages:
                if message is None:
                    slices += 1
                    if slices < IN_A_ROW and not self._adapter.turns.talking():
                        continue
                    self._adapter.turns.give(self.turn, time.thread_time() - begun)
                    return
                yield from self._shown(message)
            yield self._answer(ControlType.RESENT if self._begun else ControlType.NO_RESEND)
        except RequestError as error:
            yield self._session.failure(f"Resend request failed: {error}", RESEND_FAILED, self._request.request_id)
        del self._session.resends[self]

    def _shown(self, message: Message) -> Iterator[bytes]:
        version = self._session.message_version
        row = self._adapter.stored_row(message, version)
        if row is None:
            return
        if not self._begun:
            self._begun = True
            yield self._answer(ControlType.RESENDING)
        yield text_frame(encode_unicast(self._session.control, self._request.request_id, row))

    def _answer(self, kind: ControlType) -> bytes:
        asked = self._request
        answer = Answer(
            type=kind,
            stream_id=asked.stream_id,
            stream_partition=asked.stream_partition,
            request_id=asked.request_id,
        )
        return text_frame(encode(answer, self._session.control))


def find(stored: Stored, channel: str, request: Resend, shows: Shows) -> Iterator[Message | None]:
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
