"""Publishing many messages: batches of lines (NDJSON), each repeated with its own idempotency key until it is done.

Batches depend only on the messages, so a program that sends the same messages with the same key again repeats the same
batches, and nothing is published twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any
from uuid import uuid4

import anyio
import httpx

from .errors import Refused, TrellisError, Unavailable, refusal
from .jsontext import Json, JsonText, encode
from .records import Receipt
from .transport import Backoff, Transport, path_of

LINES = 128  # of a batch; its results are few enough for the gateway to buffer while the batch is being sent
BATCH_BYTES = 1 << 20  # of a batch, unless one message is longer
NDJSON = "application/x-ndjson"

Result = Receipt | Refused


class Bulk:
    """Publishes *contents* on a channel, a batch at a time."""

    def __init__(
        self,
        transport: Transport,
        channel: str,
        contents: Iterable[Json | JsonText] | AsyncIterable[Json | JsonText],
        key: str | None,
    ) -> None:
        self._transport = transport
        self._path = path_of(channel, "messages")
        self._contents = aiter(contents) if isinstance(contents, AsyncIterable) else iter(contents)
        self._key = uuid4().hex if key is None else key
        self._first = 0  # messages before this batch
        self._next: bytes | None = None  # the first line of the next batch

    async def publish_batch(self) -> list[Result] | None:
        """Publish the next batch and return its results, in order; None after the last."""
        lines = await self._read_batch()
        if not lines:
            return None
        results = await self._publish(lines)
        self._first += len(lines)
        return results

    async def _read_batch(self) -> list[bytes]:
        lines: list[bytes] = []
        size = 0
        while len(lines) < LINES:
            line = self._next if self._next is not None else await self._read_line()
            if line is None:
                break
            if lines and size + len(line) > BATCH_BYTES:
                self._next = line
                break
            self._next = None
            lines.append(line)
            size += len(line)
        return lines

    async def _read_line(self) -> bytes | None:
        try:
            found = await anext(self._contents) if isinstance(self._contents, AsyncIterator) else next(self._contents)
        except (StopIteration, StopAsyncIteration):
            return None
        return encode(found) + b"\n"

    async def _publish(self, lines: list[bytes]) -> list[Result]:
        """Publish *lines*; the batch is repeated while the gateway answers some of them with a temporary problem."""
        headers = {"Content-Type": NDJSON, "Idempotency-Key": f"{self._key}/{self._first}"}
        backoff = Backoff(self._transport.retry_seconds)
        while True:
            response = await self._transport.request("POST", self._path, b"".join(lines), headers)
            with self._transport.reading():
                results = [self._result(json.loads(line)) for line in response.content.splitlines()]
            error = _temporary(results, len(lines))
            if error is None:
                return results
            if (pause := backoff.next(error)) is None:
                if len(results) < len(lines):
                    raise error
                return results
            await anyio.sleep(pause)

    def _result(self, answer: dict[str, Any]) -> Result:
        if "sequence" in answer:
            return Receipt.of(answer)
        return refusal(answer | {"line": self._first + int(answer["line"])})


def _temporary(results: list[Result], lines: int) -> TrellisError | None:
    """Return why the batch should be repeated, None if it is done."""
    for result in results:
        if isinstance(result, Refused) and result.temporary:
            return result
    if len(results) < lines:
        detail = f"the gateway answered {len(results)} of {lines} messages"
        return Unavailable({"status": httpx.codes.SERVICE_UNAVAILABLE, "detail": detail})
    return None
