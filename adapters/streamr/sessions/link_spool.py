"""What a link sends to another broker: what was logged since its cursor, then what is published, in the log's order.

The log is the spool: nothing else is kept for a broker that cannot be reached. Brokers do not confirm publishes, but
they answer other requests in order. So a link that has sent something asks for the last message of a stream, one such
question at a time. The answer, whatever it says, confirms everything that was sent before the question. If the broker
could not take a message, the link goes back to its cursor, once for each message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from adapters.streamr.wire.claims import with_claim
from adapters.streamr.wire.codec import encode
from adapters.streamr.wire.control import PublishRequest, ResendRequest
from adapters.streamr.wire.ids import stream_of
from adapters.streamr.wire.message import LATEST
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import RequestError
from gateway.core.frames import text_frame
from gateway.core.shared_ids import shared_id

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts
    from gateway.core.message import Message
    from gateway.core.outbox import Outbox

CONTROL: Final = 2  # the version of control frames in which a link speaks
PAGE: Final = 32  # messages of the log that are read in one turn
PAGE_BYTES: Final = 1 << 18  # of their contents
CATCH_UP: Final = 500  # messages of the log a second: half of the rate that a gateway allows a peer by default
MAX_FAILED: Final = 1_000  # messages remembered as sent a second time, which are not sent again
MAX_HELD: Final = 1_000  # messages published while a link catches up that are held; others are read from the log
MAX_HELD_BYTES: Final = 1 << 20  # of their contents, which may have a MiB each
SENT: Final = "sent "  # the start of the id of a question whose answer confirms what was sent before it


class LinkSpool:
    """Sends to *link* the messages of the *wanted* channels after the sequence *cursor*, each once."""

    def __init__(
        self, link: Outbox, parts: StreamrParts, wanted: Callable[[str], bool], token: str | None, cursor: int
    ) -> None:
        self.cursor = cursor  # the sequence up to which everything has certainly arrived
        self.count = 0  # messages that were sent
        self.caught_up = False
        self.held_size = 0  # bytes of the contents of messages that wait until the link has caught up
        self.asked_at: int | None = None  # when the open question was asked, ms
        self._link = link
        self._parts = parts
        self._index = parts.context.services.index
        self._wanted = wanted
        self._token = token
        self._read = cursor  # the last sequence that was read from the log
        self._sent = self._asked = 0  # sequences: the last that was sent, and the last when the question was asked
        self._channel = ""  # of the last message
        self._held: deque[Message] = deque()
        self._dropped = 0  # the last sequence that is not in `_held`, and has to be read from the log
        self._allowance = CATCH_UP  # messages of the log that may be sent until the next tick
        self._paused = False  # until the next tick
        self._failed = BoundedMap[int, None](MAX_FAILED)  # sequences
        self._returning = False  # to the cursor, at the next tick

    def start(self) -> None:
        """Begin with the messages after the cursor; without a cursor, with new ones."""
        if not self.cursor:
            self.cursor = self._index.synced_seq
            self.caught_up = True
        else:
            self._dropped = self._parts.context.bus.ledger.next_seq - 1  # not all of that may be on disk yet
            self._next_page()

    def deliver(self, message: Message) -> None:
        """Send a *message* that was just published, or keep it until the link has caught up."""
        if not self.caught_up:
            self._held.append(message)
            self.held_size += len(message.content)
            while len(self._held) > MAX_HELD or self.held_size > MAX_HELD_BYTES:
                self._dropped = self._next_held().seq
        elif (frame := self._frame(message)) is not None:
            self._link.put(frame)

    def tick(self, now: int) -> None:
        """Ask for a confirmation if one is due, or advance the cursor if nothing waits for one; *now* is in ms."""
        self._allowance = CATCH_UP
        if self._returning and self.caught_up:
            self._returning, self.caught_up, self.asked_at, self._read = False, False, None, self.cursor
            self._dropped = self._sent
            self._paused = True
        if self._paused:
            self._paused = False
            self._next_page()
        if not self.caught_up or self.asked_at is not None:
            return
        if self._sent <= self.cursor:
            self.cursor = max(self.cursor, self._index.synced_seq)
            return
        stream, partition = stream_of(self._channel)
        self._asked, self.asked_at = self._sent, now
        question = ResendRequest(
            stream_id=stream,
            stream_partition=partition,
            number_last=1,
            request_id=f"{SENT}{self._sent}",
            session_token=self._token,
        )
        self._link.send(text_frame(encode(question, CONTROL)))

    def answered(self) -> None:
        """Take the answer to the open question, which confirms what was sent before it."""
        if self.asked_at is not None:
            self.asked_at = None
            if not self._returning:
                self.cursor = self._asked

    def failed(self, seq: int) -> bool:
        """Send the message *seq*, which the broker could not take, once more; return whether it will be sent."""
        if seq in self._failed or seq <= self.cursor:
            return False
        self._failed[seq] = None
        self._returning = True
        return True

    def _next_page(self) -> None:
        """Let the link pull what the next page of the log has, unless it is closing."""
        if self._link.closing is not None:
            return
        try:
            page = self._index.scan(self._wanted, after=self._read, limit=PAGE, size=PAGE_BYTES)
        except RequestError:
            self._link.close(1011, "the index cannot be read")
            return
        if page.last == self._read:
            self._allowance = 0  # the rest is not on disk yet: look again at the next tick
        self._read = page.last
        self._link.stream(self._frames(page.messages))

    def _frames(self, messages: list[Message]) -> Iterator[bytes]:
        yield from filter(None, map(self._frame, messages))
        self._allowance -= len(messages)
        at_end = self._read >= max(self._index.synced_seq, self._dropped)
        if at_end:
            yield from self._held_frames()
        if at_end and self._read >= self._dropped:
            self.caught_up = True
            return
        self._paused = self._allowance <= 0
        if not self._paused:
            self._parts.context.services.answer_scheduler.schedule(self._next_page, "")

    def _held_frames(self) -> Iterator[bytes]:
        """Yield the messages that were published meanwhile, until one was dropped, and has to be read from the log."""
        while self._held and self._read >= self._dropped:
            message = self._next_held()
            if message.seq > self._read:
                self._read = message.seq
                if (frame := self._frame(message)) is not None:
                    yield frame

    def _next_held(self) -> Message:
        message = self._held.popleft()
        self.held_size -= len(message.content)
        return message

    def _frame(self, message: Message) -> bytes | None:
        """Return the PublishRequest of *message*; None if it has no form in Streamr.

        What its author signed is sent unchanged, so its signature stays valid. What came by another protocol is signed
        with the key of its sender here, as in every other answer of this gateway, so its id is the same. The id by
        which gateways know it is added: a gateway removes it, and brokers ignore it.
        """
        found = self._parts.forms.stream_message(message)
        if found is None:
            return None
        self.count += 1
        self._sent, self._channel = message.seq, message.channel
        request = PublishRequest(
            message=with_claim(found, shared_id(message)), request_id=str(message.seq), session_token=self._token
        )
        return text_frame(encode(request, CONTROL, LATEST))
