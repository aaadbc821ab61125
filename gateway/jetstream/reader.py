"""Reads a stream of NATS JetStream in its order, from a position on, without a gap.

The reader has a consumer of its own on the server, which ends by itself when it is not used, and asks it for portions.
Each message has its position; if one is missing, or the server is silent for longer than its heartbeat, a new consumer
continues behind the last message that was read. It begins with that message, which shows whether the stream is still
the same.

Only an answer that names a leader of the stream says where the stream begins and ends; that there is no such stream,
the leader of all servers says. One answer that the stream lacks something, or is missing, proves nothing, for a server
that is cut off leads its own old copy for some seconds: all answers of `HOLE_SECONDS` have to agree.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamState
from nats.js.errors import NotFoundError
from nats.js.manager import JetStreamManager
from zlib_ng.zlib_ng import crc32

from gateway.core.errors import OperatorError

from .status import has_leader

PORTION = 256  # messages asked for at once
PORTION_BYTES = 32 << 20  # of a portion; more than the longest message
MAX_UNTAKEN = 2 * PORTION  # messages read and not yet taken, beyond which nothing is asked for
MAX_UNTAKEN_BYTES = 16 << 20  # of them; one portion may come beyond either
EXPIRES_SECONDS = 30.0  # after which a portion that is not full is asked for again
HEARTBEAT_SECONDS = 2.0  # of the server
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS  # without a heartbeat, after which the server no longer has the consumer
STALLED_SECONDS = 10.0  # without a message although the stream has more, after which a consumer is given up
RETRY_SECONDS = 0.1  # between two consumers
HOLE_SECONDS = 20.0  # for which all answers say that the stream lacks something, after which it does
LIFETIME_SECONDS = 60.0  # of a consumer that asks for nothing
HEARTBEAT, EXPIRED = "100", "408"  # statuses
FULL, COMPLETE = "maxbytes", "batch completed"  # in descriptions of another status, which also ends consumers
NO_STREAM = (
    "the NATS servers have no stream {}, of which {:,} entries were read: it was deleted, or the servers have lost it. "
    "What was accepted is in the logs of the members: begin a new stream with the longest of them "
    "(docs/how-to/cluster.md, Begin a new stream)"
)
REMEDY = "restore a backup of a member that is younger than seven days (docs/how-to/cluster.md)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StreamEntry(NamedTuple):
    """A message of the stream: its *position* (from 1), the server's *time* (ms since 1970), and its *data*."""

    position: int
    time: int
    data: bytes


class StreamGap(OperatorError):
    """The stream lacks what comes next: it has removed it, or was lost. Reading on would leave something out."""


class _Lack:
    """The time since which all answers have said that the stream lacks something."""

    def __init__(self) -> None:
        self._since: float | None = None

    def note(self) -> bool:
        """Note such an answer; return whether there were no others for `HOLE_SECONDS`."""
        now = monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since > HOLE_SECONDS

    def forget(self) -> None:
        """Note that nothing is lacking, or that nobody answers."""
        self._since = None


class EntryReader:
    """Reads from behind the position *after*; *receive* gets what came, in order."""

    def __init__(
        self,
        client: Client,
        stream: str,
        after: int,
        receive: Callable[[list[StreamEntry]], None],
        digest: int | None = None,
    ) -> None:
        self.position = self.taken = after
        self._digest = digest  # of the message at that position; None if it is not known
        self._compares = False  # whether this consumer begins with that message, to see that it is the same stream
        self._gap: StreamGap | None = None
        self._end_lack, self._next_lack = _Lack(), _Lack()  # of what was read last, and of what comes next
        self.end: int | None = None  # the last position when reading began
        self._client = client
        self._stream = stream
        self._receive = receive
        self._wake = asyncio.Event()
        self._heard = 0.0  # when something came last, or was asked for, by the clock of the loop
        self._is_held = False  # whether it waits until more was taken
        self._entries: list[StreamEntry] = []
        self._sizes = deque[int]()  # of the messages that are not taken yet
        self._untaken = 0  # their sum
        self._open = False  # whether the portion that was asked for goes on
        self._stalled = (after, 0.0)  # the position, and since when (monotonic) it stays there although more is open
        self._ended = False  # whether this consumer is of no more use

    def acknowledge_read(self, position: int) -> bool:
        """Note that everything up to *position* was taken; return whether the reader waits for that.

        Call this in any thread and, if it returns True, `go_on` in the stream's, which costs much more.
        """
        self.taken = position
        return self._is_held

    def go_on(self) -> None:
        """Ask for more, if there is room now."""
        self._wake.set()

    def restart(self) -> None:
        """Continue with a new consumer, because the connection is a new one, or this one has stopped."""
        self._ended = True
        self._forget_lacks()  # another server may be asked now
        self._wake.set()

    def expect(self, last: int) -> None:
        """Note that the stream goes up to *last*; go on with a new consumer if this one has stopped.

        A consumer that lost touch with the stream goes on sending heartbeats. Call this every few seconds.
        """
        position, since = self._stalled
        if not self._open or self.position >= last or self.position != position or not since:
            self._stalled = self.position, monotonic()
        elif monotonic() - since > STALLED_SECONDS:
            self._stalled = self.position, 0.0
            self.restart()

    async def run(self) -> None:
        """Read until cancelled. Raises `StreamGap` if the stream lacks what comes next."""
        while True:
            try:
                await self._read()
            except (Error, TimeoutError):
                self._forget_lacks()
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        """Read with one consumer, until it fails."""
        self._open = self._ended = False  # before the first wait, in which `restart` may be called
        manager = JetStreamManager(self._client)
        if (state := await self._state(manager)) is None:
            return
        self._compares = self._digest is not None and 0 < state.first_seq <= self.position
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.position + (not self._compares),
            ack_policy=AckPolicy.NONE,
            inactive_threshold=LIFETIME_SECONDS,
            mem_storage=True,
            num_replicas=1,
        )
        consumer = (await manager.add_consumer(self._stream, config)).name
        if self.end is None:  # a server that is cut off, and leads its own copy, makes no consumer
            self.end = state.last_seq
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=self._hear)
        try:
            while not self._ended:
                self._wake.clear()  # before asking, which waits if the connection is busy: what comes meanwhile counts
                await self._ask(f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}", inbox)
                await self._wait()
        finally:
            await subscription.unsubscribe()
        if self._gap is not None:
            raise self._gap

    async def _state(self, manager: JetStreamManager) -> StreamState | None:
        """Return what the stream has, if reading can continue; None if that is not known now. Raises `StreamGap`."""
        try:
            info = await manager.stream_info(self._stream)
        except NotFoundError:
            if self._end_lack.note():
                raise StreamGap(NO_STREAM.format(self._stream, self.position)) from None
            return None
        if not has_leader(info):  # it is about the copy of one server
            self._forget_lacks()
            return None
        state = info.state
        if self.position > state.last_seq:  # or the server that answers is not as far as another was
            if self._end_lack.note():
                raise StreamGap(f"the stream ends at {state.last_seq}, but {self.position} was taken already")
            return None
        self._end_lack.forget()
        if self.position + 1 < state.first_seq:
            raise StreamGap(
                f"the stream begins at {state.first_seq}, but {self.position + 1} was not taken yet: {REMEDY}"
            )
        return state

    async def _ask(self, subject: str, inbox: str) -> None:
        """Ask for a portion unless one is open, or too much that was read is not taken yet."""
        if self._open or self._is_full():
            return
        self._open, self._rest, self._heard = True, PORTION, asyncio.get_running_loop().time()
        asked = {
            "batch": PORTION,
            "max_bytes": PORTION_BYTES,
            "expires": int(EXPIRES_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        await self._client.publish(subject, json.dumps(asked).encode(), reply=inbox)

    def _is_full(self) -> bool:
        """Whether too much that was read is not taken yet."""
        self._is_held = True  # first: what is taken while this looks calls `go_on`
        while self._sizes and self.position - len(self._sizes) < self.taken:
            self._untaken -= self._sizes.popleft()
        self._is_held = self.position - self.taken > MAX_UNTAKEN or self._untaken > MAX_UNTAKEN_BYTES
        return self._is_held

    async def _wait(self) -> None:
        """Wait until something is to be done; raise `TimeoutError` if a portion is open and nothing comes of it.

        A message wakes nobody: a task that waits costs more than all else that is done for a message here.
        """
        loop = asyncio.get_running_loop()
        while True:
            since = self._heard if self._open else loop.time()
            try:
                async with asyncio.timeout_at(since + SILENCE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                if self._open and self._heard == since:
                    raise
                if self._open:
                    continue
            return

    async def _hear(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        self._take(message)
        if not self._open or self._ended:
            self._wake.set()

    def _take(self, message: Msg) -> None:
        if not message.reply:
            self._hear_status(message.headers or {})
            return
        if self._gap is not None:
            return
        position = message.metadata.sequence.stream
        if self._compares:
            self._compare(position, message.data)
            return
        if position != self.position + 1:
            if position > self.position and not self._ended:
                self._note_hole(self.position + 1, position)
            return
        self.position, self._digest = position, crc32(message.data)
        self._next_lack.forget()
        time = (message.metadata.timestamp - _EPOCH) // timedelta(milliseconds=1)
        if not self._entries:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._entries.append(StreamEntry(position, time, message.data))
        self._sizes.append(len(message.data))
        self._untaken += len(message.data)
        self._count()

    def _compare(self, position: int, data: bytes) -> None:
        """Check that the stream still has what was read last: it may have been restored from an older state."""
        self._compares = False
        self._count()
        if position > self.position:
            self._note_hole(self.position, position)
        elif crc32(data) != self._digest:
            self._gap = StreamGap(
                f"the stream has something else at {position} than it had: it was lost, or restored from an older state"
            )
            self._ended = True

    def _note_hole(self, missing: int, found: int) -> None:
        """Begin again, perhaps at another server; after `HOLE_SECONDS` the *missing* message counts as lost."""
        self._ended = True
        if self._next_lack.note():
            self._gap = StreamGap(f"the stream lacks {missing}, and goes on with {found}: {REMEDY}")

    def _forget_lacks(self) -> None:
        self._end_lack.forget()
        self._next_lack.forget()

    def _count(self) -> None:
        """Note that a message of the portion has come."""
        self._rest -= 1
        if not self._rest:
            self._open = False

    def _hear_status(self, headers: dict[str, str]) -> None:
        """Note a heartbeat, the end of a portion, or the end of the consumer."""
        status, description = headers.get("Status", ""), headers.get("Description", "").lower()
        if status == HEARTBEAT or COMPLETE in description:  # the second follows the last message, which was counted
            return
        self._open = False
        self._ended = status != EXPIRED and FULL not in description

    def _hand_over(self) -> None:
        entries, self._entries = self._entries, []
        self._receive(entries)
