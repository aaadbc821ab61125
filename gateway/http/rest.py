"""The REST interface: publishing, history, events, channels and peers.

Paths are routed as they were sent (`app.RawPaths`), so a channel's name may contain an encoded slash. Bodies are read
and written raw, so content passes unchanged. Every failure is a problem (`gateway.http.problems`).
"""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Path, Query, Request, Response

from gateway.core.channels import MAX_NAME, valid_name
from gateway.core.errors import UnknownChannel
from gateway.core.message import REST, Message
from gateway.runtime import Gateway, clock

from . import explanations, history, keys, listing, operations, schemas, sync, traces, views, whois
from .bodies import hold_body
from .bulk import BulkResponse
from .callers import Caller, admit_request, path_segment
from .events import open_stream
from .media import MAX_CONTENT, NDJSON, TEXT, content_reader
from .problems import Problem, direct_refusal
from .publish import begin, parse_request_content
from .rest_helpers import LOGGED, wait_until_accepted, wait_until_synced
from .routing import MAX_INTEGER, After, Id, Names, ProblemRoute, Route, Selected, add_route
from .searches import Searches
from .selection import Selection, parse_selection
from .time_range import parse_cursor, parse_range
from .unrouted import METHODS, UNROUTED, unrouted

MAX_LIMIT = 256  # messages or channels in one response
PREPARE_SECONDS = 10.0  # to sign what a new channel needs in every protocol; usually a few milliseconds
NO_ADDRESS_YET = "the channel %r exists now, but it has no address in %s yet; PUT it again to wait for that"

# What FastAPI reads from a request, and what /docs says about it. Paths come raw: see `callers.path_segment`.
CHANNEL = "The channel's name, percent-encoded: `weather%2Fberlin`."
IDEMPOTENCY_KEY = "A request that is repeated with the same key publishes only once; so does each line of NDJSON."
Channel = Annotated[str, Path(description=CHANNEL)]
Number = Annotated[int, Path(ge=0, le=MAX_INTEGER, description="A peer's number.")]
AfterName = Annotated[str, Query(max_length=MAX_NAME, description="Only channels whose names sort after this.")]
Contains = Annotated[
    str, Query(max_length=MAX_NAME, description="Only channels with this in their names, in upper or lower case.")
]
Listened = Annotated[bool, Query(description="Only channels that somebody listens to now.")]
Before = Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="Only messages with a lower sequence.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="The maximum number of results.")]
Sender = Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="Only messages of the peer with this number.")]
Order = Annotated[history.Order, Query(description="`asc`: oldest first; `desc`: newest first.")]
Since = Annotated[str | None, Query(description="Only messages of the last `10m`; units are s, m, h, d and w.")]
From = Annotated[str | None, Query(alias="from", description="Only from this time on: RFC 3339, or ms since 1970.")]
To = Annotated[str | None, Query(description="Only before this time, in the same forms.")]
Text = Annotated[
    str | None, Query(description='Only messages with these words and "phrases"; `*` ends a prefix (`log.search`).')
]
Cursor = Annotated[str | None, Query(description="Where a page by time begins; `next` has it.")]
Resume = Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="As `Last-Event-ID`, in the first request.")]
LastEventId = Annotated[
    int | None, Header(ge=0, le=MAX_INTEGER, description="The `id` of the last `message` event seen.")
]
Patterns = Annotated[list[str], Query(description="One pattern, such as `news/*`, with any comma in it; repeatable.")]
Key = Annotated[str | None, Query(description="The API key, for an `EventSource`, which cannot send headers.")]

ANY_JSON = {"description": "Any JSON value.", "example": {"text": "hello"}}
ANY_TEXT = {"type": "string", "description": "Text, which becomes a JSON string.", "example": "hello"}
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ANY_JSON}, TEXT: {"schema": ANY_TEXT}},
    }
}
PUBLISH = {  # its handler is called without FastAPI (see `routes.RawRoute`), so nothing else describes it
    "parameters": [
        {"name": "channel", "in": "path", "required": True, "schema": {"type": "string"}, "description": CHANNEL},
        {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}, "description": IDEMPOTENCY_KEY},
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": ANY_JSON},
            TEXT: {"schema": ANY_TEXT},
            NDJSON[0]: {"schema": {"type": "string", "description": "One JSON value a line."}},
        },
    },
    "responses": {"200": {"description": "The results of lines.", "content": schemas.content(NDJSON[0])}},
}


class Rest:
    """The handlers by resource; each identifies the caller and checks their right before anything else."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._searches = Searches(gateway)

    # Messages

    async def publish(self, request: Request) -> Response:
        """Publish one JSON value, a text, or with `application/x-ndjson` a JSON value on each line.

        A text (`text/plain`, and what `curl -d` sends) becomes a JSON string. The response is 201 once the message is
        on disk. For lines it has one result each, in order, while the body is still being sent: read the results as you
        write. The result of a refused line is its problem.
        """
        publisher, read = begin(self.gateway, request, request.path_params["channel"])
        if read is None:
            return BulkResponse(publisher, request)
        async with hold_body(request, MAX_CONTENT, self.gateway.bus.read_pacer) as body:
            async with body.turn():
                content = await parse_request_content(publisher.caller, bytes(body.data), read)
            if self.gateway.membership is not None:
                await self.gateway.membership.until_acting()
            taken = publisher.publish(content)
            if (logged := request.scope.get(LOGGED)) is not None:
                logged()
        await wait_until_accepted(self.gateway.bus, taken)
        return Response(publisher.answer(taken), 201, media_type=views.MEDIA_TYPE)

    async def messages(
        self,
        request: Request,
        channel: Channel,
        after: After = 0,
        before: Before = None,
        limit: Limit = 100,
        sender: Sender = None,
        order: Order = "asc",
        since: Since = None,
        from_: From = None,
        to: To = None,
        text: Text = None,
        cursor: Cursor = None,
    ) -> Response:
        """Get the messages of a channel, a page at a time; `next` is the address of the next page, or null.

        Messages come in the order of sequences, or with `since`, `from` or `to` and without `text` in the order of
        their timestamps. A page may end early, even without a message, if finding more would take too long.
        """
        caller = Caller(self.gateway, request)
        name = caller.resolve_channel("history", channel)
        caller.charge(limit / history.PAGE)
        times = parse_range(since, from_, to, clock())
        query: history.HistoryQuery
        if text is not None:
            query = history.TextQuery(name, limit, sender, order, text, times, after, before)
            await self._searches.run(caller, query)
        elif times.is_bounded:
            if after or before is not None:
                raise Problem("invalid-parameter", "after, before: with since, from or to, follow `next` instead")
            query = history.TimeQuery(name, limit, sender, order, times, parse_cursor(cursor))
        else:
            query = history.SequenceQuery(name, limit, sender, order, after, before)
        return await caller.paced_response(query.slices(self.gateway), views.MEDIA_TYPE, "history", name)

    async def message(self, request: Request, channel: Channel, id: Id) -> Response:
        """Get one message, by its canonical id or by its id in any protocol."""
        name = Caller(self.gateway, request).resolve_channel("history", channel)
        found = history.find_message(self.gateway, name, path_segment(id))
        return Response(views.message(self.gateway.peers, found), media_type=views.MEDIA_TYPE)

    async def events(
        self,
        request: Request,
        channel: Channel,
        after: Resume = None,
        last_event_id: LastEventId = None,
        key: Key = None,
    ) -> Response:
        """Listen to a channel, from now on or after a message.

        The events are `welcome`, then `message`, `direct`, `joined`, `left` and `gap`. The id of a `message` is its
        sequence, that of `welcome` the sequence where the stream begins; others have none. A stream that is resumed
        after the last id misses nothing and repeats nothing; `gap` reports messages that retention has removed.
        """
        caller = Caller(self.gateway, request, key)
        name = caller.resolve_channel("subscribe", channel)
        return open_stream(caller, Selection((name,)), after if last_event_id is None else last_event_id)

    async def all_events(
        self,
        request: Request,
        channels: Selected = [],  # noqa: B006  # FastAPI makes a new list for each request
        channel: Names = [],  # noqa: B006
        pattern: Patterns = [],  # noqa: B006
        after: Resume = None,
        last_event_id: LastEventId = None,
        key: Key = None,
    ) -> Response:
        """Listen to several channels, and to all whose names begin in a certain way, also to those that begin later.

        The events are those of one channel; each names its channel. There is a `welcome` for each channel and pattern.
        The ids count through all channels, so a stream that is resumed misses nothing and repeats nothing in any of
        them. A client that listens by a pattern is not in these channels: `joined`, `left` and `direct` come only from
        channels that are named. A right is needed for each named channel; a pattern brings the channels that you may
        hear.
        """
        caller = Caller(self.gateway, request, key)
        selection = parse_selection(channels, channel, pattern)
        caller.check_selection(selection)
        return open_stream(caller, selection, after if last_event_id is None else last_event_id)

    # Channels

    async def channels(
        self,
        request: Request,
        after: AfterName = "",
        limit: Limit = 100,
        contains: Contains = "",
        listened: Listened = False,
    ) -> Response:
        """List the channels that you may see, by name; `next` is the address of the next page, or null.

        A page may end early, even without a channel, if finding more of what was asked for would take too long.
        """
        caller = Caller(self.gateway, request)
        caller.authorize_listing()
        caller.pace("")
        names, more = await listing.visible_channels(caller, after, limit, contains, listened=listened)
        shown = await listing.describe_channels(self.gateway, names)
        url = str(request.url.include_query_params(after=more).query) if more is not None else None
        return views.json_response({"channels": shown, "next": url and f"/v1/channels?{url}"})

    async def channel(self, request: Request, channel: Channel) -> Response:
        """Get a channel: its address in each protocol, the number of listeners, the sequence of its last message."""
        return views.json_response(views.channel(self.gateway, self._existing(Caller(self.gateway, request), channel)))

    async def make_channel(self, request: Request, channel: Channel) -> Response:
        """Create a channel; the status is 200 if it exists already.

        The response comes once the channel is on disk and has its address in every protocol.
        """
        caller, name = Caller(self.gateway, request), path_segment(channel)
        if not valid_name(name):
            raise UnknownChannel(name)
        caller.check("publish", name)
        self.gateway.bus.check_log()
        caller.charge_creation(name)
        created = self.gateway.channels.register(name)
        await self._wait_until_prepared(name)
        await wait_until_synced(self.gateway.log, self.gateway.log.next_seq - 1)
        return views.json_response(views.channel(self.gateway, name), 201 if created else 200)

    async def close_channel(self, request: Request, channel: Channel) -> Response:
        """Remove a channel from the list until it is used again; its history and its addresses remain."""
        name = self._existing(Caller(self.gateway, request), channel, "admin")
        self.gateway.bus.check_log()
        self.gateway.channels.close(name)
        await wait_until_synced(self.gateway.log, self.gateway.log.next_seq - 1)
        return Response(status_code=204)

    # Peers

    async def peers(self, request: Request, channel: Channel) -> Response:
        """List the peers in a channel, on any protocol; each peer once."""
        caller = Caller(self.gateway, request)
        name = caller.resolve_channel("subscribe", channel)
        peers = self.gateway.bus.peers_in(name)
        caller.charge(len(peers) / listing.BATCH)
        slices = listing.list_slices("peers", map(views.peer, peers))
        return await caller.paced_response(slices, views.MEDIA_TYPE, "subscribe", name)

    async def direct(self, request: Request, channel: Channel, number: Number) -> Response:
        """Send a message to one peer in a channel; it is never logged, and `delivered` counts its connections."""
        caller = Caller(self.gateway, request)
        name = caller.resolve_channel("direct", channel)
        read = content_reader(request.headers.get("content-type"))
        async with hold_body(request, MAX_CONTENT, self.gateway.bus.read_pacer) as body:
            async with body.turn():
                content = await parse_request_content(caller, bytes(body.data), read)
            message = Message(name, caller.who, REST, content.text)
            answered, answers = anyio.Event(), list[int | None]()

            def answer(delivered: int | None) -> None:
                answers.append(delivered)
                answered.set()

            self.gateway.bus.send_direct(message, number, answer)
            await answered.wait()
        if not (delivered := answers[0]):
            raise direct_refusal(message, number, delivered)
        return views.json_response({"id": message.id, "delivered": delivered}, 202)

    async def peer(self, request: Request, number: Number) -> Response:
        """Get everything known of a sender: its names in each protocol, and the channels where it is and has published.

        A sender with an identity is always found; any other while it is connected or any of its messages are kept.
        """
        caller = Caller(self.gateway, request)
        caller.check("subscribe", "")
        caller.charge(whois.COST)
        found = await whois.report(caller, number)
        if found is None:
            raise Problem(
                "unknown-peer",
                f"there is no peer {number}; GET /v1/channels/{{channel}}/peers lists those in a channel",
            )
        return views.json_response(found)

    # What they need

    def _existing(self, caller: Caller, segment: str, verb: str = "subscribe") -> str:
        """Return the channel named by *segment*; raise `Problem` 404 if it does not exist and nobody listens to it."""
        name = caller.resolve_channel(verb, segment)
        if not self.gateway.channels.exists(name) and not self.gateway.bus.listener_count(name):
            detail = f"there is no channel {name!r}; PUT creates it, and so does its first message"
            raise Problem("unknown-channel", detail)
        return name

    async def _wait_until_prepared(self, channel: str) -> None:
        """Wait until *channel* has its address in every protocol; raise `Problem` 503 if that takes too long."""
        for adapter in self.gateway.adapters:
            if (pending := adapter.preparing(channel)) is None:
                continue
            made = anyio.Event()
            pending.when_done(made.set)
            with anyio.move_on_after(PREPARE_SECONDS):
                await made.wait()
            if pending.data is None:
                raise Problem("address-pending", NO_ADDRESS_YET % (channel, adapter.title), {"Retry-After": "1"})


# fmt: off
ONE = "/v1/channels/{channel}"
ROUTES = [  # the most frequent request comes first, because routes are tried in order
    Route("POST",   ONE + "/messages",                Rest.publish, 201, more=PUBLISH, raw=True, schema="Accepted"),
    Route("GET",    ONE + "/messages",                Rest.messages, schema="MessagePage"),
    Route("GET",    ONE + "/messages/{id}",           Rest.message, schema="Message"),
    Route("GET",    ONE + "/events",                  Rest.events, media_type="text/event-stream"),
    Route("GET",    "/v1/events",                     Rest.all_events, media_type="text/event-stream"),
    Route("GET",    "/v1/channels",                   Rest.channels, schema="ChannelPage"),
    Route("GET",    ONE,                              Rest.channel, schema="Channel"),
    Route("PUT",    ONE,                              Rest.make_channel, 201, others=(200,), schema="Channel"),
    Route("DELETE", ONE,                              Rest.close_channel, 204),
    Route("GET",    ONE + "/peers",                   Rest.peers, schema="PeerList"),
    Route("POST",   ONE + "/peers/{number}/messages", Rest.direct, 202, more=BODY, schema="Direct"),
    Route("GET",    "/v1/peers/{number}",             Rest.peer, schema="PeerDetails"),
]
# fmt: on


def router(gateway: Gateway) -> APIRouter:
    """Return all routes."""
    routes = APIRouter(route_class=ProblemRoute)
    owners: list[tuple[object, list[Route]]] = [
        (Rest(gateway), ROUTES),
        (keys.Keys(gateway), keys.ROUTES),
        (traces.Traces(gateway), traces.ROUTES),
        (sync.Sync(gateway), sync.ROUTES),
        (operations.Operations(gateway), operations.ROUTES),
        (explanations.Explanations(), explanations.ROUTES),
    ]
    for owner, table in owners:
        for route in table:
            add_route(routes, owner, route)
    return routes


def fallback(gateway: Gateway) -> APIRouter:
    """Return a route that answers every other path of /v1/ with a problem."""
    routes = APIRouter(route_class=ProblemRoute)

    async def refuse(request: Request) -> Response:
        """Refuse a path that does not exist, or a method that it does not have."""
        admit_request(gateway, request)
        raise unrouted(request)

    routes.add_api_route("/v1/{path:path}", refuse, methods=METHODS, name=UNROUTED, include_in_schema=False)
    return routes
