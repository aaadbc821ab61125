"""`POST .../messages`: what is checked before a message is published, and publishing it.

Nothing here waits for the disk; the callers do so before they answer (`rest_helpers.wait_until_accepted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio.to_thread
from fastapi import Request

from gateway.core.bus import Bus
from gateway.core.contracts import Receipt
from gateway.core.errors import Conflict, RequestError
from gateway.core.jsontext import dumps
from gateway.core.message import REST, Message
from gateway.core.publish_gathering import Refuse
from gateway.runtime import Gateway

from . import views
from .bodies import SHORT_BODY
from .callers import Caller
from .media import ParsedContent, Reader, content_reader, is_ndjson, parse_content
from .problems import Problem

MAX_KEY = 512  # characters of an Idempotency-Key


async def parse_request_content(caller: Caller, body: bytes, read: Reader = parse_content) -> ParsedContent:
    """Parse the *body* that *caller* sent; a long one in a thread, which needs a turn (`bodies.turn_queue`)."""
    if len(body) <= SHORT_BODY:
        return parse_short(caller, body, read)
    try:
        return await anyio.to_thread.run_sync(read, body)
    except Problem:
        caller.charge_malformed(len(body))
        raise


def parse_short(caller: Caller, body: bytes, read: Reader) -> ParsedContent:
    """Parse a short *body* that *caller* sent, which is charged if it is malformed."""
    try:
        return read(body)
    except Problem:
        caller.charge_malformed(len(body))
        raise


def check_key(key: str) -> None:
    """Raise `Problem` 400 if *key* is too long for an Idempotency-Key."""
    if len(key) > MAX_KEY:
        raise Problem("invalid-idempotency-key", f"an Idempotency-Key has at most {MAX_KEY} characters")


def message_key(identity: str | None, channel: str, key: str, *line: int) -> str:
    """Return the id by which the message of *identity* with the Idempotency-Key *key* is found again."""
    return f"key:{dumps([identity, channel, key, *line]).decode()}"


def find_key(bus: Bus, key: str) -> Receipt | None:
    """Return the receipt of the earlier message with this *key*, even if that was not logged yet; None without one."""
    bus.gathering.settle_key(key)
    return bus.ledger.find(key)


def find_published(gateway: Gateway, message: Message, key: str) -> Receipt | None:
    """Return the receipt of the earlier message with the key of *message*, or None without one.

    Raises `Conflict` if it had another content, which names the Idempotency-Key *key*.
    """
    found = None if message.key is None else find_key(gateway.bus, message.key)
    first = None if found is None else gateway.index.entry(found.seq)
    if isinstance(first, Message) and first.content != message.content:
        raise Conflict(f"another message came with the Idempotency-Key {key!r} before")
    return found


def begin(gateway: Gateway, request: Request, segment: str) -> tuple[Publisher, Reader | None]:
    """Check all of *request* but its body; *segment* of its path names the channel.

    Return the publisher, and what reads the body, None for a message on each line. Raises `RequestError`.
    """
    headers = request.headers
    caller = Caller(gateway, request)
    content_type = headers.get("content-type")
    lines = is_ndjson(content_type)
    channel = caller.resolve_channel("publish", segment, paced=not lines)
    publisher = Publisher(caller, channel, headers.get("idempotency-key"))
    if not lines or gateway.log.failing is not None:  # lines wait for a disk that is merely slow
        gateway.bus.check_log()
    return publisher, None if lines else content_reader(content_type)


class Publisher:
    """Publishes the messages of one caller on one channel; with an Idempotency-Key, each only once."""

    def __init__(self, caller: Caller, channel: str, key: str | None) -> None:
        if key is not None:
            check_key(key)
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
        self.caller.authorize("publish", self.channel)  # its right may have ended since the request began
        message = self._message(content, *line)
        if (found := self._find(message)) is not None:
            return found
        self.caller.charge_creation(self.channel)
        return self.gateway.bus.publish(message)

    def publish_alone(self, content: ParsedContent, refuse: Refuse) -> Receipt | Message:
        """`publish` in the call that has checked the request, perhaps together with what others publish in this turn.

        The message that is returned may have no sequence yet: wait until it is accepted. *refuse* is called with an
        error that is found only later; then nobody waits for the message any more.
        """
        message = self._message(content)
        if (found := self._find(message)) is not None:
            return found
        self.caller.charge_creation(self.channel)
        bus = self.gateway.bus

        def forget(error: RequestError) -> None:
            bus.acceptance.forget(message)
            refuse(error)

        bus.publish_alone(message, None, forget)
        return message

    def takes_in_runs(self, line: ParsedContent | Problem) -> bool:
        """Whether *line* can be published in a run: nothing has to be found for it."""
        return self._key is None and isinstance(line, ParsedContent) and line.parent is None

    def publish_run(self, lines: Iterable[ParsedContent | Problem]) -> list[Message]:
        """Publish *lines* that `takes_in_runs` takes, all or none of them; raises `RequestError` if it is none."""
        self.caller.authorize("publish", self.channel)
        self.caller.charge_creation(self.channel)
        run = [Message(self.channel, self._who, REST, line.text) for line in lines if isinstance(line, ParsedContent)]
        self.gateway.bus.publish_run(run)
        return run

    def pace(self) -> None:
        """Raise `Throttled` if the caller publishes too fast."""
        self.caller.pace(self.channel)

    def answer(self, taken: Receipt | Message) -> bytes:
        """Return the response body for the message *taken*."""
        return views.accepted(self.channel_json, taken)

    def answer_lines(self, run: Sequence[Message]) -> bytes:
        """Return the lines that answer a *run* of lines."""
        return views.accepted_lines(self.channel_json, run)

    def _message(self, content: ParsedContent, *line: int) -> Message:
        key = None if self._key is None else message_key(self._who.identity, self.channel, self._key, *line)
        return Message(self.channel, self._who, REST, content.text, parent=content.parent, key=key)

    def _find(self, message: Message) -> Receipt | None:
        return None if self._key is None else find_published(self.gateway, message, self._key)
