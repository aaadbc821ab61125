"""`POST .../messages`: publishes one message, and answers once it is on disk."""

from __future__ import annotations

import anyio.to_thread

from gateway.core.contracts import Receipt
from gateway.core.errors import Conflict
from gateway.core.jsontext import dumps
from gateway.core.message import REST, Message

from . import views
from .bodies import SHORT_BODY
from .callers import Caller
from .media import ParsedContent, Reader, parse_content
from .problems import Problem

MAX_KEY = 512  # characters of an Idempotency-Key


async def parse_request_content(caller: Caller, body: bytes, read: Reader = parse_content) -> ParsedContent:
    """Parse the *body* that *caller* sent; a long one in a thread, which needs a turn (`bodies.turn_queue`)."""
    try:
        return read(body) if len(body) <= SHORT_BODY else await anyio.to_thread.run_sync(read, body)
    except Problem:
        caller.charge_malformed(len(body))
        raise


class Publisher:
    """Publishes the messages of one caller on one channel; with an Idempotency-Key, each only once."""

    def __init__(self, caller: Caller, channel: str, key: str | None) -> None:
        if key is not None and len(key) > MAX_KEY:
            raise Problem("invalid-idempotency-key", f"an Idempotency-Key has at most {MAX_KEY} characters")
        self.gateway = caller.gateway
        self.channel = channel
        self.channel_json = dumps(channel)
        self.caller = caller
        self._who = caller.who
        self._key = key

    def publish(self, content: ParsedContent, *line: int) -> Receipt | Message:
        """Publish one message (the *line*-th of a request), or find it if it was published before.

        Raises `RequestError` if it is refused.
        """
        self.caller.authorize("publish", self.channel)
        if self._key is None:
            return self._publish(content)
        key = f"key:{dumps([self._who.identity, self.channel, self._key, *line]).decode()}"
        found = self.gateway.log.find(key)
        if found is None:
            return self._publish(content, key)
        first = self.gateway.index.entry(found.seq)
        if isinstance(first, Message) and first.content != content.text:
            raise Conflict(f"another message came with the Idempotency-Key {self._key!r} before")
        return found

    def pace(self) -> None:
        """Raise `Throttled` if the caller publishes too fast."""
        self.caller.pace(self.channel)

    def answer(self, taken: Receipt | Message) -> bytes:
        """Return the response body for the message *taken*."""
        return views.accepted(self.channel_json, taken)

    def _publish(self, content: ParsedContent, key: str | None = None) -> Message:
        message = Message(self.channel, self._who, REST, content.text, parent=content.parent, key=key)
        return self.gateway.bus.publish(message)
