"""`POST .../messages` with a message on each line (NDJSON), read and answered at the same time.

The body is never held as a whole: unsent results are limited to `MAX_UNSENT` bytes, and a client that does not read
them is not read either. Lines that arrive together are published in runs (decision 10), and go to the disk together.
A failing disk ends the stream: each line that was read is answered, with a problem if it was not accepted or if that
is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import groupby
from typing import NamedTuple

import anyio
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gateway.core.errors import OutcomeUnknown, RequestError, Throttled, Unavailable
from gateway.core.message import REST

from .bodies import SHORT_BODY, network_of, turn_queue
from .media import MAX_CONTENT, NDJSON, TOO_LONG, WHITESPACE, ParsedContent, parse_content
from .problems import Problem, problem_of
from .publish import Publisher, parse_request_content
from .rest_helpers import outcome_unknown, wait_until_synced

MAX_UNSENT = 4 << 20  # bytes of results that wait for the disk or the client; above it no line is read
LINES_PER_TURN = 128  # lines that are taken in one turn of the loop
STALLED_SECONDS = 60.0  # for a client to read a result; then the connection ends
NO_MEMORY = "the gateway is short of memory; send this line and the rest again in a moment"
STOP_SECONDS = 1.0  # in place of `STALLED_SECONDS` while the gateway stops


class _Result(NamedTuple):
    """The results of *lines* lines, beginning with line *number*, sent once everything up to *seq* is on disk.

    Those lines are accepted together: they are one run, or only one line.
    """

    number: int
    lines: int
    seq: int
    text: bytes


class LineSplitter:
    """Splits a stream of bytes into lines; a line of more than *limit* bytes becomes None."""

    def __init__(self, limit: int = MAX_CONTENT) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    @property
    def held_size(self) -> int:
        """Return how many bytes of the unfinished line are kept."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that *data* completes, without blank ones."""
        first, *whole = data.split(b"\n")
        self._add(first)
        if not whole:
            return []
        lines = self.end()
        rest = whole.pop()
        limit = self._limit  # of what follows, nothing is kept from before
        lines += [line if len(line) <= limit else None for line in whole if len(line) > limit or line.strip(WHITESPACE)]
        self._add(rest)
        return lines

    def end(self) -> list[bytes | None]:
        """End the current line, and return it unless it is blank."""
        line, self._rest = bytes(self._rest), bytearray()
        skipped, self._skipping = self._skipping, False
        return [None] if skipped else [line] if line.strip(WHITESPACE) else []

    def _add(self, data: bytes) -> None:
        if not self._skipping:
            self._rest += data
            if len(self._rest) > self._limit:
                self._skipping = True
                self._rest = bytearray()


class AutoResetEvent:
    """Wakes one task repeatedly; a call of `set` is never missed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the task, or let its next `wait` return at once."""
        self._event.set()

    async def wait(self) -> None:
        """Wait until `set` was called since the last `wait`."""
        await self._event.wait()
        self._event = anyio.Event()


class BulkResponse(Response):
    """The response to a body of lines: one result on each line, in order, while the body is still being read."""

    def __init__(self, publisher: Publisher, request: Request) -> None:
        super().__init__(media_type=NDJSON[0])
        del self.headers["content-length"]
        self._publisher = publisher
        self._gateway = publisher.gateway
        self._request = request
        self._results: deque[_Result] = deque()
        self._unsent = 0
        self._number = 1  # of the next line
        self._read_all = False
        self._outcome_unknown = False  # whether what waits for the disk is accepted is not known
        self._ready = AutoResetEvent()
        self._room = AutoResetEvent()
        self._reading = anyio.CancelScope()
        self._sending = anyio.CancelScope()
        self._send_seconds = STALLED_SECONDS
        self._lines = LineSplitter()
        self._given_up = False
        self.network = network_of(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI
        """Answer until the body ends and its last line is on disk."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            self._gateway.at_goodbye.add(self._stop)
            self._gateway.budget.enter(self)
            try:
                await self._write(send)
            finally:
                self._gateway.at_goodbye.discard(self._stop)
                self._gateway.budget.leave(self)
            tasks.cancel_scope.cancel()

    def _stop(self) -> None:
        """Read no further line, because the gateway stops, and answer those that were read."""
        self._send_seconds = STOP_SECONDS
        self._reading.cancel()
        self._sending.deadline = min(self._sending.deadline, anyio.current_time() + STOP_SECONDS)

    # What the budget asks

    @property
    def held_size(self) -> int:
        """Return how many bytes are kept for the client: the unfinished line and unsent results."""
        return self._lines.held_size + self._unsent

    def release_memory(self) -> None:
        """Stop reading; the result of the next line says so."""
        self._given_up = True
        self._reading.cancel()

    # Reading

    async def _read(self) -> None:
        lines = self._lines
        with self._reading, suppress(ClientDisconnect):  # there is no client to answer; an unfinished line is discarded
            async with aclosing(self._request.stream()) as chunks:
                async for chunk in chunks:
                    await self._publish_all(lines.feed(chunk))
                    if self._gateway.log.failing is not None or self._reading.cancel_called:
                        break
                else:
                    await self._publish_all(lines.end())
        if self._given_up:
            self._results.append(self._refused(self._number, Unavailable(NO_MEMORY)))
        self._read_all = True
        self._ready.set()

    async def _publish_all(self, lines: list[bytes | None]) -> None:
        """Publish *lines* as fast as the rate limits, the disk and the client allow."""
        todo = deque(
            [self._short(line) if line is None or len(line) <= SHORT_BODY else await self._long(line) for line in lines]
        )
        membership = self._gateway.membership
        while todo:
            if membership is not None:
                await membership.until_acting()
            await anyio.sleep(self._publish(todo))
            while self._unsent > MAX_UNSENT:
                await self._room.wait()
            while self._gateway.bus.congested and self._gateway.log.failing is None and not self._gateway.log.held:
                with suppress(OutcomeUnknown):  # the next line is refused
                    await wait_until_synced(self._gateway.log, self._gateway.log.next_seq - 1)

    def _short(self, line: bytes | None) -> ParsedContent | Problem:
        """Return the content of a short *line*, or the problem with it; a *line* of None was too long."""
        if line is None:
            return Problem("content-too-long", TOO_LONG)
        try:
            return parse_content(line)
        except Problem as problem:
            self._publisher.caller.charge_malformed(len(line))
            return problem

    async def _long(self, line: bytes) -> ParsedContent | Problem:
        """Return the content of a long *line*, or the problem with it."""
        try:
            async with turn_queue().turn(self.network):
                return await parse_request_content(self._publisher.caller, line)
        except Problem as problem:
            return problem

    def _publish(self, todo: deque[ParsedContent | Problem]) -> float:
        """Publish a few lines of *todo*; return the seconds to wait before the next."""
        wait, ready = 0.0, min(LINES_PER_TURN, len(todo))
        for paced in range(ready):
            try:
                self._publisher.pace()
            except Throttled as error:  # the line is published later, not refused
                wait, ready = error.retry_after_seconds, paced
                break
        last = 0
        for alike, lines in groupby([todo.popleft() for _ in range(ready)], self._publisher.takes_in_runs):
            for result in self._run(list(lines)) if alike else map(self._result, lines):
                last = max(last, result.seq)
                self._unsent += len(result.text)
                self._results.append(result)
        self._gateway.log.when_synced(last, self._ready.set, self._on_write_failure)
        return wait

    def _run(self, lines: list[ParsedContent | Problem]) -> Iterable[_Result]:
        try:
            taken = self._publisher.publish_run(lines)
        except RequestError:  # perhaps because of one of them
            return map(self._result, lines)
        number, self._number = self._number, self._number + len(taken)
        return (_Result(number, len(taken), taken[-1].seq, self._publisher.answer_lines(taken)),)

    def _result(self, line: ParsedContent | Problem) -> _Result:
        number, self._number = self._number, self._number + 1
        try:
            if isinstance(line, Problem):
                raise line
            taken = self._publisher.publish(line, number)
        except RequestError as error:
            return self._refused(number, error)
        return _Result(number, 1, taken.seq, self._publisher.answer(taken) + b"\n")

    def _refused(self, number: int, error: RequestError) -> _Result:
        problem = problem_of(error)
        self._gateway.metrics.refused(REST, str(problem.status), line=number, why=problem.detail)
        return _Result(number, 1, 0, problem.body(line=number) + b"\n")

    def _on_write_failure(self) -> None:
        """Answer the lines that wait for the disk, which has failed for long, and read no more."""
        self._outcome_unknown = True
        self._reading.cancel()
        self._ready.set()

    # Writing

    async def _write(self, send: Send) -> None:
        """Send results as their messages reach the disk, until the last one or until the client does not read."""
        while not (self._read_all and not self._results):
            settled = self._settled()
            if not settled:
                await self._ready.wait()
                continue
            await self._send(send, b"".join(map(self._with_outcome, settled)), more=True)
            if self._sending.cancelled_caught:
                return
            self._unsent -= sum(len(result.text) for result in settled)
            self._room.set()
        await self._send(send, b"", more=False)

    def _settled(self) -> list[_Result]:
        """Return the next results that are on disk; if the disk failed, all of them."""
        settled = []
        while self._results and (self._outcome_unknown or self._results[0].seq <= self._gateway.log.synced_seq):
            settled.append(self._results.popleft())
        return settled

    def _with_outcome(self, result: _Result) -> bytes:
        if result.seq <= self._gateway.log.synced_seq:
            return result.text
        error = outcome_unknown(self._gateway.log)
        numbers = range(result.number, result.number + result.lines)
        return b"".join([self._refused(number, error).text for number in numbers])

    async def _send(self, send: Send, body: bytes, *, more: bool) -> None:
        with anyio.move_on_after(self._send_seconds) as self._sending:
            await send({"type": "http.response.body", "body": body, "more_body": more})
