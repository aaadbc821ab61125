"""`/v1/sync`: finds the messages that two gateways do not share, and hands them over.

`trellis sync` asks the gateways in turn: one says what it needs to know next (`differences`), and the other answers,
until the differences are known. Then each hands over messages that the other lacks. Neither keeps a session.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Generator, Iterator
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from typing import Annotated, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec
from fastapi import Request, Response

from gateway.core.channels import valid_name
from gateway.core.errors import Incomplete, RequestError, Throttled, Unavailable
from gateway.core.message import REST, Message
from gateway.reconciliation import rounds
from gateway.reconciliation.items import ItemSet, id_of
from gateway.reconciliation.wire import ID_SIZE, MalformedSync
from gateway.runtime import Gateway

from . import views
from .abandoned_requests import while_wanted
from .bodies import SHORT_BODY, IncomingBody, hold_body, turn_queue
from .callers import Caller
from .media import NDJSON, TEXT
from .paced import run_in_turn
from .problems import Problem, problem_of
from .rest_helpers import wait_until_accepted, wait_until_synced
from .routing import MAX_INTEGER, Names, Route, Selected
from .selection import Selection, parse_selection, pattern_of
from .sync_messages import Handed, incomplete, line_of, parse_line, result, take
from .sync_sets import MessageSets

MAX_MESSAGE: Final = 2 * rounds.MAX_MESSAGE  # bytes of a request; other implementations may be more talkative
MAX_IDS: Final = 256  # messages that one request hands over
MAX_LINES: Final = 4 << 20  # bytes after which a response ends early, and of a body that hands over
STEP: Final = 16  # messages in one turn of the loop
COST: Final = 10  # requests that a comparison counts as
NAMES: Final = 256  # channels that are looked at in one turn of the loop
OCTETS: Final = "application/octet-stream"
EVERY_CHANNEL: Final = Selection(prefixes=("",))
STOPS: Final = problem_of(Unavailable("the gateway stops; hand the message over again"))
NOT_SELECTED: Final = "the message is on another channel than those that the request names"

BYTES = {"type": "string", "format": "binary", "description": "A message of negentropy, version 1."}
NEGENTROPY_BODY = {"requestBody": {"required": True, "content": {OCTETS: {"schema": BYTES}}}}
JSON_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
LINES_BODY = {
    "requestBody": {"required": True, "content": {key: {"schema": {"type": "string"}} for key in (NDJSON[0], TEXT)}}
}


T = TypeVar("T")


class Compare(msgspec.Struct):
    """What the other gateway answered (base64; None to begin), and the time (ms) before which nothing counts."""

    message: str | None = None
    since: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] = 0


class Wanted(msgspec.Struct):
    """The ids of messages, 32 bytes in hex each."""

    ids: Annotated[list[str], msgspec.Meta(max_length=MAX_IDS)]


class _Handover(NamedTuple):
    """A request that hands messages over: its caller, the channels that it names, and its network."""

    caller: Caller
    selection: Selection
    network: str
    taken: list[Message]  # that are still to be accepted


class Sync:
    """The handlers; each needs a right on every channel that is named, and looks only at channels that are covered."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._sets = MessageSets(gateway)

    async def answer(self, request: Request, channels: Selected = [], channel: Names = []) -> Response:  # noqa: B006
        """Answer a message of the reconciliation protocol negentropy, version 1, about channels (right: `history`).

        The body is a message of the side that begins, and so is the response one of the other side.
        """
        caller, names = await self._begin(request, channels, channel)
        async with self._body(request, MAX_MESSAGE) as body:
            answer = await self._sets.use(caller.principal.network, names, partial(_answer, message=bytes(body.data)))
        return Response(answer, media_type=OCTETS)

    async def differences(self, request: Request, channels: Selected = [], channel: Names = []) -> Response:  # noqa: B006
        """Compare some channels with what another gateway answered (right: `history`).

        Without a `message` it begins. The response has the next `message` for the other gateway, null at the end, and
        the ids of messages that only this one has (`have`) and of those that only the other one has (`need`).
        """
        caller, names = await self._begin(request, channels, channel)
        async with self._body(request, MAX_MESSAGE) as body:
            async with body.turn():
                asked = _parse(bytes(body.data), Compare)
            message = None if asked.message is None else _bytes(asked.message)
            found = await self._sets.use(
                caller.principal.network, names, partial(_compare, message=message, since=asked.since)
            )
        following = None if found.next is None else b64encode(found.next).decode()
        have, need = [id_of(item).hex() for item in found.have], [id.hex() for id in found.need]
        return views.json_response({"message": following, "have": have, "need": need})

    async def export(self, request: Request, channels: Selected = [], channel: Names = []) -> Response:  # noqa: B006
        """Get messages of some channels by the ids that a comparison found, for another gateway (right: `history`).

        The lines are in the order of the log. A response may leave messages out, so that it does not become too long:
        ask again for the others. What is no longer kept is left out too.
        """
        caller, names = await self._begin(request, channels, channel)
        async with self._body(request, MAX_MESSAGE) as body:
            async with body.turn():
                ids = set(map(_id, _parse(bytes(body.data), Wanted).ids))
            places = await self._sets.use(caller.principal.network, names, partial(_places, ids=ids))
        lines, size, charged_size, given = list[bytes](), 0, 0, set[bytes]()
        for count, seq in enumerate(places):
            if size >= MAX_LINES:
                break
            if not count % STEP or size - charged_size > SHORT_BODY:
                caller.charge((size - charged_size) / SHORT_BODY)
                charged_size = size
                await anyio.sleep(0)
            message = self.gateway.index.entry(seq)
            if isinstance(message, Message) and message.channel in names:
                if message.wire is not None:
                    await anyio.sleep(0)  # looking up what it needs takes as long as many messages
                lines.append(line_of(self.gateway, message, given))
                size += len(lines[-1])
        return Response(b"".join(lines), media_type=NDJSON[0])

    async def import_(self, request: Request, channels: Selected = [], channel: Names = []) -> Response:  # noqa: B006
        """Take messages that another gateway handed over (right: `publish`), under their ids, signed as they are.

        If channels are named, messages on others are refused. There is a result for each line, in order: whether the
        message was `accepted`, is `known`, or is `incomplete`, because it needs others (`missing`) and may be handed
        over again after them; or the problem.
        """
        caller = Caller(self.gateway, request)
        if not self.gateway.access.has_any_right(caller.principal, ("publish",)):
            caller.authorize("publish", "")
        selection = parse_selection(channels, channel) if channels or channel else EVERY_CHANNEL
        caller.pace("")
        self.gateway.bus.check_log()
        async with self._body(request, 2 * MAX_LINES) as body:
            count = _count_lines(body.data)
            handover = _Handover(caller, selection, body.network, [])
            results = list[bytes]()
            async with while_wanted(self.gateway, request):
                for line in _lines(body.data):
                    results.append(await self._take(handover, line, len(results)))
        results += [STOPS.body(line=number) + b"\n" for number in range(len(results), count)]
        if handover.taken:
            await wait_until_accepted(self.gateway.bus, handover.taken[-1])
        await wait_until_synced(self.gateway.log, self.gateway.log.next_seq - 1)
        return Response(b"".join(results), media_type=NDJSON[0])

    async def _take(self, handover: _Handover, line: bytes, count: int) -> bytes:
        """Take the message on *line*, as fast as the caller may publish; return what became of it."""
        caller = handover.caller
        if count and not count % STEP:
            await anyio.sleep(0)
        id, handed = "", None
        try:
            handed = await _parse_in_turn(line, handover.network) if len(line) > SHORT_BODY else parse_line(line)
            id = handed.id
            if not handover.selection.covers(handed.channel):
                raise Problem("request-refused", NOT_SELECTED)
            if valid_name(handed.channel):  # nobody waits for what they may not do
                caller.authorize("publish", handed.channel)
            await _wait_for_rate(caller, handed.channel)
            caller.charge(len(handed.needs))
            found = await self._finish(take(caller, handed), handover.network)
        except Incomplete as error:
            assert handed is not None
            self.gateway.metrics.count("handed_over", "incomplete")
            return incomplete(handed, error)
        except RequestError as error:
            problem = problem_of(error)
            self.gateway.metrics.refused(REST, str(problem.status), why=problem.detail)
            self.gateway.metrics.count("handed_over", "refused")
            return problem.body(id=id, line=count) + b"\n"
        if isinstance(found, Message):
            handover.taken.append(found)
        self.gateway.metrics.count("handed_over", "known" if found is False else "accepted")
        return result(handed, found is not False)

    async def _finish(self, steps: Generator[None, None, T], network: str) -> T:
        """Do *steps*, all but the first in turns of the loop, while this gateway acts; return the result.

        In a cluster the turn to act may pass to others between two steps. While other networks are served, the steps
        share the turns of long answers: connections that each did one in every turn of the loop would hold it.
        """
        read_pacer, membership = self.gateway.bus.read_pacer, self.gateway.membership
        results = list[T]()

        def advance() -> None:
            if membership is not None and membership.awaits_turn:
                return
            try:
                next(steps)
            except StopIteration as end:
                results.append(end.value)

        with closing(steps):
            if membership is not None:
                await membership.until_acting()
            advance()
            while not results:
                await anyio.sleep(0)
                if membership is not None:
                    await membership.until_acting()
                if read_pacer is not None and read_pacer.serves_others(network):
                    await run_in_turn(self.gateway.answer_scheduler, network, advance)
                else:
                    advance()
        return results[0]

    def _body(self, request: Request, limit: int) -> AbstractAsyncContextManager[IncomingBody]:
        return hold_body(request, limit, self.gateway.bus.read_pacer, (MalformedSync, Problem))

    async def _begin(self, request: Request, lists: list[str], names: list[str]) -> tuple[Caller, frozenset[str]]:
        """Check and charge a request before it waits for anything; return the caller and the channels that it names.

        Of the channels that match a pattern, these are the ones that the caller may read. Raises `Problem`,
        `Forbidden`, `UnknownChannel` or `Throttled`.
        """
        caller = Caller(self.gateway, request)
        selection = parse_selection(lists, names)
        for name in selection.channels:
            caller.authorize("history", name)
        if selection.prefixes and not self.gateway.access.has_any_right(caller.principal, ("history",)):
            caller.authorize("history", pattern_of(selection.prefixes[0]))
        caller.pace("")
        caller.charge(COST)
        found = set(selection.channels)
        after = "" if selection.prefixes else None
        while after is not None:
            listed = self.gateway.channels.listed(after, NAMES)
            found.update(name for name in listed if name.startswith(selection.prefixes) and caller.may("history", name))
            after = listed[-1] if len(listed) == NAMES else None
            await anyio.sleep(0)
        return caller, frozenset(found)


def _count_lines(body: bytearray) -> int:
    """Return how many lines *body* has; raise `Problem` if there are more than `MAX_IDS`."""
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    if count > MAX_IDS:
        raise Problem("invalid-parameter", f"not more than {MAX_IDS} lines in one request")
    return count if body else 0


def _lines(body: bytearray) -> Iterator[bytes]:
    """Yield the lines of *body*, one after the other: a copy of all of them would take as much memory again."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        yield bytes(body[start:end]).removesuffix(b"\r")
        start = end + 1


async def _parse_in_turn(line: bytes, network: str) -> Handed:
    async with turn_queue().turn(network):
        return await anyio.to_thread.run_sync(parse_line, line)


async def _wait_for_rate(caller: Caller, channel: str) -> None:
    """Wait until the caller may publish another message on *channel*."""
    while True:
        try:
            caller.pace(channel)
        except Throttled as error:
            await anyio.sleep(error.retry_after_seconds)
        else:
            return


def _answer(items: ItemSet, message: bytes) -> bytes:
    return rounds.answer(items, message)


def _compare(items: ItemSet, message: bytes | None, since: int) -> rounds.Comparison:
    if message is None:
        return rounds.Comparison(rounds.begin(items, since), [], [])
    return rounds.compare(items, message)


def _places(items: ItemSet, ids: set[bytes]) -> list[int]:
    return sorted(items.find(ids).values())


def _parse(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Problem("invalid-parameter", f"the body: {error}") from None


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Problem("invalid-parameter", "message: it is not base64") from None


def _id(text: str) -> bytes:
    try:
        id = bytes.fromhex(text)
    except ValueError:
        id = b""
    if len(id) != ID_SIZE:
        raise Problem("invalid-parameter", f"ids: each is {ID_SIZE} bytes in hex")
    return id


# fmt: off
ROUTES = [
    Route("POST", "/v1/sync",             Sync.answer, media_type=OCTETS, more=NEGENTROPY_BODY),
    Route("POST", "/v1/sync/differences", Sync.differences, more=JSON_BODY, schema="Differences"),
    Route("POST", "/v1/sync/export",      Sync.export, media_type=NDJSON[0], more=JSON_BODY),
    Route("POST", "/v1/sync/import",      Sync.import_, media_type=NDJSON[0], more=LINES_BODY),
]
# fmt: on
