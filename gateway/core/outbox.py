"""What waits for a peer: finished and unfinished forms in order, and long answers that are pulled as it reads.

An outbox knows nothing of the bus or of protocols. Whoever writes to it is never held up: a peer that does not read
what it asked for is cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from .errors import RequestError
from .flows import Flow
from .message import Form, PendingForm

MAX_OUTBOX = 1 << 20  # deliveries waiting for a peer that reads too slowly; beyond it the peer is closed
LOW_WATER = 1 << 16  # replies waiting; beyond it no further request is parsed, below it streams are pulled
BURST_FACTOR = 4  # times its outbox that a peer may be given before its shell had a chance to write
MAX_STREAMS = 16  # long answers under way on one connection; beyond it no further request is parsed


class Close(NamedTuple):
    """Why a connection ends; *code* as in RFC 6455, section 7.4 (a plain TCP wire has no use for it)."""

    code: int
    reason: str


class FanoutBatch:
    """What was said lately for the same listeners, on its way to their outboxes.

    A burst of messages then costs each listener little more than one: its outbox is touched once. Listeners were
    woken when the batch began. Whoever looks at an outbox, or queues something else, spills it: see `Outbox._queue`.
    """

    __slots__ = ("_listeners", "_origin", "_size", "frames")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._listeners: Sequence[Outbox] = ()
        self._origin: Outbox | None = None
        self._size = 0

    def add(self, frames: Sequence[bytes], listeners: Sequence[Outbox], origin: Outbox | None) -> None:
        """Queue *frames* for all *listeners* but *origin*; the sequence of listeners never changes."""
        if listeners is not self._listeners or origin is not self._origin or self._size > LOW_WATER:
            self.flush()
            self._listeners, self._origin = listeners, origin
        if not self.frames:
            for outbox in listeners:
                if not outbox._own_queue and outbox is not origin:
                    outbox.wake()
        self.frames += frames
        self._size += sum(map(len, frames))

    def flush(self) -> None:
        """Put everything into the outboxes."""
        frames, size, self.frames, self._size = self.frames, self._size, [], 0
        if not frames:
            return
        overfull = list[Outbox]()  # closed when everybody has the frames: their adapters' code runs then
        origin = self._origin
        for outbox in self._listeners:
            if outbox is origin or outbox.closing is not None:
                continue
            outbox._own_queue += frames
            outbox._size = waiting = outbox._size + size
            if waiting > outbox.max_outbox:
                overfull.append(outbox)
        for outbox in overfull:
            outbox._close_if_too_slow()


class Outbox:
    """What waits for one peer; `wake` is called when something can be written, or there is an end to be made.

    The *batch* is shared by all who may listen together. Every look at the queue is through `_queue`, which has what
    the batch brings; *overflowed* is called where the peer is cut off because it did not read.
    """

    max_outbox: int = MAX_OUTBOX

    def __init__(self, batch: FanoutBatch, overflowed: Callable[[], object]) -> None:
        self.wake: Callable[[], None] = _nothing
        self.closing: Close | None = None
        self.blocked = True  # the wire takes nothing now; a shell that writes says otherwise
        self._batch = batch
        self._overflowed = overflowed
        self._sample: Callable[[], None] | None = None  # ends the measuring of a delivery that is on its way out
        self._own_queue: list[Form] = []  # the queue without what the batch brings: see `_queue`
        self._size = 0  # bytes in it; the batch brings about `LOW_WATER` more at most
        self._pending_count = 0  # forms in the queue that are still being made
        self._streams: deque[Iterator[Form]] = deque()
        self._backlog: deque[bytes] = deque()  # what the peer sent, and waits for room here

    @property
    def _queue(self) -> list[Form]:
        """What waits, in order."""
        if self._batch.frames:
            self._batch.flush()
        return self._own_queue

    def resume(self) -> None:
        """Handle what had to wait, as far as there is room now."""

    # What shells call

    def data_to_send(self) -> list[bytes]:
        """Everything that can be written now, in order; long answers come a piece at a time."""
        data: list[bytes] = self._queue  # type: ignore[assignment]  # no PendingForm among them, but where `_drain` looks
        if self._pending_count or self._streams:
            data = self._drain()
        else:
            self._own_queue, self._size = [], 0
        if self._sample is not None and not self._queue:
            self._end_sample()
        if self._backlog:
            self.resume()
        return data

    def all_to_send(self) -> bytes | None:
        """Everything as one piece, where that leaves nothing else to do; else None: ask `data_to_send` and the rest."""
        if self._batch.frames:  # as `_queue` does: spares a call for each flush
            self._batch.flush()
        if self._pending_count or self._streams or self._backlog or self.closing is not None or not self._own_queue:
            return None
        data, self._own_queue, self._size = self._own_queue, [], 0
        if self._sample is not None:
            self._end_sample()
        return b"".join(data)  # type: ignore[arg-type]  # no PendingForm among them

    @property
    def waiting(self) -> int:
        """How many frames are queued."""
        return len(self._queue)

    @property
    def has_more(self) -> bool:
        """Whether another `data_to_send` would return something right away."""
        queue = self._queue
        head = queue[0] if queue else None
        return (head is not None and (not isinstance(head, PendingForm) or head.done)) or (
            bool(self._streams) and not self._pending_count
        )

    @property
    def unfinished(self) -> bool:
        """Whether something that was asked for is still being made, and has its place before what comes later."""
        return self._pending_count > 0

    # What adapters call

    def send(self, data: bytes) -> None:
        """Queue a whole frame."""
        if not self._queue:
            self.wake()
        self._own_queue.append(data)
        self._size += len(data)

    def put(self, form: Form) -> None:
        """Queue a delivery, finished or not; a peer that is too slow for its deliveries is closed."""
        queue = self._queue
        if self.closing is not None:
            return
        if isinstance(form, PendingForm):
            if not form.done or form.size > len(form.data or b""):  # as `_is_unfinished`
                self._put_pending(form)
                return
            if form.data is None:
                return
            form = form.data
        if not queue:  # as `send` does; the call would cost a quarter of the delivery
            self.wake()
        self._own_queue.append(form)
        self._size += len(form)
        if self._size > self.max_outbox:
            self._close_if_too_slow()

    @staticmethod
    def fan_out(forms: Sequence[bytes], outboxes: Sequence[Outbox], origin: Outbox | None) -> int:
        """`put` the finished *forms* into all *outboxes* (at least one) but *origin*; how many deliveries that is."""
        outboxes[0]._batch.add(forms, outboxes, origin)
        return len(forms) * (len(outboxes) - (origin in outboxes if origin is not None else 0))

    def sample(self, flow: Flow) -> None:
        """Measure how long a delivery of *flow*, which was just queued, takes until all of the queue is written."""
        if self._sample is None:
            self._sample = flow.sample()

    def stream(self, forms: Iterator[Form]) -> None:
        """Send *forms* as fast as the peer reads them, and no faster: they are pulled, never stored."""
        self._streams.append(forms)
        self.wake()

    def overflow(self) -> None:
        """Give up on a peer that does not read what it asked for."""
        self._flush_batch()
        if self.closing is not None:
            return
        self._discard()
        self._overflowed()
        self.close(1013, "too slow: more than its share is waiting to be read")

    def _discard(self) -> None:
        """Drop what waits for the peer."""
        self._flush_batch()
        self._own_queue, self._size, self._pending_count = [], 0, 0
        self._streams.clear()

    def _end(self) -> None:
        """The connection is over: nothing is written any more, and nobody is woken."""
        self.wake = _nothing
        self._discard()
        self._backlog.clear()

    def close(self, code: int, reason: str) -> None:
        """End the connection once everything queued so far is written."""
        self._flush_batch()
        if self.closing is None:
            self.closing = Close(code, reason)
            self._backlog.clear()
            self.wake()

    def _rewrite(self, change: Callable[[list[bytes]], list[bytes]]) -> None:
        """Put what *change* makes of each run of finished forms in the queue in its place."""
        queue: list[Form] = []
        for unfinished, run in groupby(self._queue, _is_unfinished):
            if unfinished:
                queue += run
                continue
            before = [
                data for form in run if (data := form.data if isinstance(form, PendingForm) else form) is not None
            ]
            after = change(before)
            queue += after
            self._size += sum(map(len, after)) - sum(map(len, before))
        self._own_queue, self._pending_count = queue, sum(isinstance(form, PendingForm) for form in queue)

    def _end_sample(self) -> None:
        assert self._sample is not None
        self._sample()
        self._sample = None

    def _flush_batch(self) -> None:
        if self._batch.frames:
            self._batch.flush()

    def _close_if_too_slow(self) -> None:
        """More than the outbox's share waits: too slow is who does not read, not who was told much at once."""
        if self.blocked or self._size > BURST_FACTOR * self.max_outbox:
            self.overflow()

    def _put_pending(self, form: PendingForm) -> None:
        """Keep the place of a form that is still being made."""
        self._pending_count += 1
        self._queue.append(form)
        form.when_done(partial(self._pending_done, form))

    def _pending_done(self, form: PendingForm) -> None:
        if not self._pending_count:
            return  # the outbox was given up meanwhile
        self._size += form.size
        if form.data and self._size > self.max_outbox:
            self.overflow()
        else:
            self._wake_if_ready()

    def _wake_if_ready(self) -> None:
        """Wake the shell where what is first in the queue is there."""
        if (queue := self._queue) and isinstance(head := queue[0], PendingForm) and head.done:
            self.wake()

    def _drain(self) -> list[bytes]:
        """The ready head of the queue, then what the streams give until `LOW_WATER` bytes are out."""
        data: list[bytes] = []
        size = 0
        while True:
            queue = self._queue
            for taken, form in enumerate(queue):
                if isinstance(form, PendingForm):
                    if not form.done:
                        del queue[:taken]
                        return data
                    if form.data is not None:
                        self._size -= len(form.data)
                        size += len(form.data)
                        data.append(form.data)
                    if form.advance():
                        del queue[:taken]
                        form.when_done(self._wake_if_ready)
                        return data
                    self._pending_count -= 1
                else:
                    self._size -= len(form)
                    size += len(form)
                    data.append(form)
            queue.clear()
            if size >= LOW_WATER or not self._pull_stream():
                return data

    def _pull_stream(self) -> bool:
        """Move the next form of the first stream into the queue; False when there is none."""
        while self._streams:
            try:
                form = next(self._streams[0], None)
            except RequestError as error:  # the index cannot be read: half an answer must not look whole
                self._streams.clear()
                self.close(1011, str(error))
                return False
            if form is None:
                self._streams.popleft()
            elif isinstance(form, PendingForm) and not form.done:
                self._put_pending(form)
                return True
            elif (data := form.data if isinstance(form, PendingForm) else form) is not None:
                self._queue.append(data)
                self._size += len(data)
                return True
        return False


def _is_unfinished(form: Form) -> bool:
    """Whether *form*, or a part of it, is still being made."""
    return isinstance(form, PendingForm) and (not form.done or form.size > len(form.data or b""))


def _nothing() -> None:
    pass
