"""The queue of what waits to be sent to a peer: forms, finished or pending, and streams that are pulled as it reads.

An outbox knows nothing of the bus or of protocols. Writing to it never blocks: a peer that does not read what it asked
for is disconnected. This file does so by the bytes that wait, the shells (`gateway.shells.connection` and
`gateway.shells.portable_shell`) by the time in which the peer takes nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import ClassVar, NamedTuple

from .errors import RequestError
from .flows import Flow
from .message import Form, PendingForm

MAX_OUTBOX = 1 << 20  # bytes of deliveries waiting for a peer; beyond it a peer that reads too slowly is closed
LOW_WATER = 1 << 16  # bytes waiting; beyond it no further request is parsed, below it streams are pulled
BURST_FACTOR = 4  # times `max_outbox` that may wait for a peer before its shell had a chance to write
MAX_STREAMS = 16  # on one connection; beyond it no further request is parsed


class Close(NamedTuple):
    """Why a connection ends; *code* is as in RFC 6455, section 7.4 (plain TCP does not use it)."""

    code: int
    reason: str


class Outbox:
    """The queue of one peer; `wake` is called when something can be written, or the connection is to be closed.

    *overflowed* is called when the peer is disconnected because it did not read.
    """

    max_outbox: int = MAX_OUTBOX
    max_portion: ClassVar[int] = sys.maxsize  # forms that `data_to_send` takes at once

    def __init__(self, overflowed: Callable[[], object]) -> None:
        self.wake: Callable[[], None] = _nothing
        self.closing: Close | None = None
        self.blocked = True  # the wire takes nothing now; a shell that can write clears it
        self._overflowed = overflowed
        self._sample: Callable[[], None] | None = None  # is called once what is queued was written
        self._queue: list[Form] = []
        self._size = 0  # bytes in it
        self._pending_count = 0  # pending forms in the queue
        self._streams: deque[Iterator[Form]] = deque()
        self._backlog: deque[bytes] = deque()  # what the peer sent, and is handled when there is room here

    def resume(self) -> None:
        """Handle the backlog, as far as there is room now."""

    # What shells call

    def data_to_send(self) -> list[bytes]:
        """Take what can be written now, in order, up to `max_portion` forms; streams are taken a piece at a time."""
        data: list[bytes] = self._queue  # type: ignore[assignment]  # without pending forms, or drained below
        if self._pending_count or self._streams or len(data) > self.max_portion:
            data = self._drain()
        else:
            self._queue, self._size = [], 0
        if self._sample is not None and not self._queue:
            self._end_sample()
        if self._backlog:
            self.resume()
        return data

    def all_to_send(self) -> bytes | None:
        """Take everything as one piece if nothing else is left to do; None if `data_to_send` has to be called."""
        if self._pending_count or self._streams or self._backlog or self.closing is not None or not self._queue:
            return None
        data, self._queue, self._size = self._queue, [], 0
        if self._sample is not None:
            self._end_sample()
        return b"".join(data)  # type: ignore[arg-type]  # no PendingForm among them

    @property
    def waiting(self) -> int:
        """The number of queued forms."""
        return len(self._queue)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the queued forms that are finished."""
        return self._size

    @property
    def has_more(self) -> bool:
        """Whether another `data_to_send` would return something now."""
        queue = self._queue
        head = queue[0] if queue else None
        return (head is not None and (not isinstance(head, PendingForm) or head.done)) or (
            bool(self._streams) and not self._pending_count
        )

    @property
    def unfinished(self) -> bool:
        """Whether the queue has pending forms, which hold back what is queued after them."""
        return self._pending_count > 0

    # What adapters call

    def send(self, data: bytes) -> None:
        """Queue a whole frame."""
        if not self._queue:
            self.wake()
        self._queue.append(data)
        self._size += len(data)

    def put(self, form: Form) -> None:
        """Queue a delivery, finished or pending; a peer that is too slow for its deliveries is closed."""
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
        if not queue:  # as in `send`; the call would cost a quarter of the delivery
            self.wake()
        self._queue.append(form)
        self._size += len(form)
        if self._size > self.max_outbox:
            self._close_if_too_slow()

    @staticmethod
    def fan_out(forms: Sequence[bytes], outboxes: Sequence[Outbox], origins: Sequence[object]) -> int:
        """`put` finished *forms* into all *outboxes*, none into that of its origin; return the number of deliveries."""
        size, count = sum(map(len, forms)), len(forms) * len(outboxes)
        others = _forms_of_others(forms, origins)
        overfull: list[Outbox] = []  # closed once all outboxes have the forms, as adapters' code runs then
        for outbox in outboxes:
            theirs, added = forms, size
            if outbox in others:
                theirs = others[outbox]
                added = sum(map(len, theirs))
                count -= len(forms) - len(theirs)
                if not theirs:
                    continue
            if outbox.closing is None:
                if not outbox._queue:
                    outbox.wake()
                outbox._queue += theirs
                outbox._size = waiting = outbox._size + added
                if waiting > outbox.max_outbox:
                    overfull.append(outbox)
        for outbox in overfull:
            outbox._close_if_too_slow()
        return count

    def sample(self, flow: Flow) -> None:
        """Measure how long a delivery of *flow*, which was just queued, takes until the whole queue is written."""
        if self._sample is None:
            self._sample = flow.sample()

    def when_written(self, call: Callable[[], None]) -> None:
        """Call *call* once the wire has taken everything that is queued now; never if nothing is."""
        if self._queue:
            self._sample = call if self._sample is None else partial(_call_both, self._sample, call)

    def stream(self, forms: Iterator[Form]) -> None:
        """Send *forms* as fast as the peer reads them: they are pulled one by one, and not stored."""
        self._streams.append(forms)
        self.wake()

    def overflow(self) -> None:
        """Disconnect a peer that does not read what it asked for."""
        if self.closing is not None:
            return
        self._discard()
        self._overflowed()
        self.close(1013, "too slow: more than its share is waiting to be read")

    def _discard(self) -> None:
        """Discard what waits for the peer."""
        self._queue, self._size, self._pending_count = [], 0, 0
        self._streams.clear()

    def _end(self) -> None:
        """Discard everything at the end of the connection; `wake` has no effect any more."""
        self.wake = _nothing
        self._discard()
        self._backlog.clear()

    def close(self, code: int, reason: str) -> None:
        """End the connection once everything queued so far is written."""
        if self.closing is None:
            self.closing = Close(code, reason)
            self._backlog.clear()
            self.wake()

    def _rewrite(self, change: Callable[[list[bytes]], list[bytes]]) -> None:
        """Replace each run of finished forms in the queue by what *change* returns for it."""
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
        self._queue, self._pending_count = queue, sum(isinstance(form, PendingForm) for form in queue)

    def _end_sample(self) -> None:
        assert self._sample is not None
        self._sample()
        self._sample = None

    def _close_if_too_slow(self) -> None:
        """Close a peer with more than `max_outbox` waiting, unless it was merely sent much at once and does read."""
        if self.blocked or self._size > BURST_FACTOR * self.max_outbox:
            self.overflow()

    def _put_pending(self, form: PendingForm) -> None:
        """Queue a pending form, which keeps its place."""
        self._pending_count += 1
        self._queue.append(form)
        form.when_done(partial(self._pending_done, form))

    def _pending_done(self, form: PendingForm) -> None:
        if not self._pending_count:
            return  # the queue was discarded meanwhile
        self._size += form.size
        if form.data and self._size > self.max_outbox:
            self.overflow()
        else:
            self._wake_if_ready()

    def _wake_if_ready(self) -> None:
        """Wake the shell if the first form in the queue is finished."""
        if (queue := self._queue) and isinstance(head := queue[0], PendingForm) and head.done:
            self.wake()

    def _drain(self) -> list[bytes]:
        """Take the finished head of the queue, then forms of the streams up to `LOW_WATER` bytes."""
        data: list[bytes] = []
        size = 0
        while True:
            queue = self._queue
            for taken, form in enumerate(queue):
                if len(data) >= self.max_portion:
                    del queue[:taken]
                    return data
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
        """Move the next form of the first stream into the queue; False if there is none."""
        while self._streams:
            try:
                form = next(self._streams[0], None)
            except RequestError as error:  # the index cannot be read, and half an answer must not look complete
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


def _forms_of_others(forms: Sequence[bytes], origins: Sequence[object]) -> dict[object, Sequence[bytes]]:
    """By origin, the *forms* that it did not publish itself; *origins* has the origin of each form."""
    if origins.count(origins[0]) == len(origins):
        return {origins[0]: ()}
    others: dict[object, list[bytes]] = {}
    for place in range(len(forms) - 1, -1, -1):  # from the end, so that the places before stay
        del others.setdefault(origins[place], list(forms))[place]
    return others  # type: ignore[return-value]


def _is_unfinished(form: Form) -> bool:
    """Whether *form*, or a part of it, is pending."""
    return isinstance(form, PendingForm) and (not form.done or form.size > len(form.data or b""))


def _call_both(one: Callable[[], None], other: Callable[[], None]) -> None:
    one()
    other()


def _nothing() -> None:
    pass
