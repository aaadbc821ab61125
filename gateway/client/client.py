"""The client: one object for one gateway, with a method for each thing that a program asks of it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

from anyio.abc import AsyncResource

from .bulk import Bulk
from .errors import Refused
from .jsontext import Json, JsonText, encode
from .paged import Paged
from .records import Channel, DirectReceipt, Message, Peer, Receipt
from .subscription import Subscription
from .transport import Address, Transport, json_of, path_of

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_SECONDS = 30.0  # for a response
RETRY_SECONDS = 30.0  # within which a request that failed temporarily is sent again
PAGE = 256  # messages or channels: as many as the gateway puts into one page
JSON = {"Content-Type": "application/json"}

Moment = datetime | int | str  # an int is in milliseconds since 1970, a str as in RFC 3339
T = TypeVar("T")


class TrellisClient(AsyncResource):
    """A program's connection to one gateway, on asyncio or trio; used as a context manager, or ended by `aclose`.

    Methods may be called by several tasks at a time. They raise `Unreachable` if nothing answers, and `Refused`, with
    the gateway's reason, if it refuses; docs/how-to/publish-from-a-program.md lists all errors.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        key: str | None = None,
        *,
        ca_file: Address | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Create a client of the gateway at *url* with an API *key*; the first request connects.

        *ca_file* has the authorities to trust in the place of the system's, and *tls* is a context of your own. A
        response may take *timeout* seconds. What fails temporarily is repeated for *retry_seconds*; with 0, never.
        Raises `BadAddress`.
        """
        self._transport = Transport(url, key, tls, ca_file, timeout, retry_seconds)
        self._subscriptions: set[Subscription] = set()

    async def aclose(self) -> None:
        """End all subscriptions and connections."""
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        await self._transport.aclose()

    @property
    def url(self) -> str:
        """Return the address of the gateway."""
        return self._transport.url

    # Messages

    async def publish(self, channel: str, content: Json | JsonText, *, idempotency_key: str | None = None) -> Receipt:
        """Publish *content*, and return once it is on disk.

        A request that fails temporarily is repeated, and is still published only once: by a key of its own, or by
        *idempotency_key*, which also covers a later run of the program. An object's member `inReplyTo` is the id of
        the message that it answers.
        """
        headers = JSON | {"Idempotency-Key": uuid4().hex if idempotency_key is None else idempotency_key}
        response = await self._transport.request("POST", path_of(channel, "messages"), encode(content), headers)
        return self._transport.read(json_of(response), Receipt.of)

    def publish_many(
        self,
        channel: str,
        contents: Iterable[Json | JsonText] | AsyncIterable[Json | JsonText],
        *,
        idempotency_key: str | None = None,
    ) -> Paged[Receipt | Refused]:
        """Publish *contents* in batches, and yield the result of each in order: a receipt, or why it is refused.

        Nothing is sent before the first result is asked for. Batches are repeated as by `publish`; raises what that
        raises if one cannot be sent.
        """
        return Paged(Bulk(self._transport, channel, contents, idempotency_key).publish_batch)

    async def direct(self, channel: str, number: int, content: Json | JsonText) -> DirectReceipt:
        """Send *content* to only the peer with this *number*; raise `NotFound` if it is not in the channel.

        Nobody keeps a direct message, so one that may have arrived is never repeated.
        """
        path = path_of(channel, "peers", number, "messages")
        response = await self._transport.request("POST", path, encode(content), JSON, repeatable=False)
        return self._transport.read(json_of(response), DirectReceipt.of)

    def subscribe(self, *channels: str, patterns: Iterable[str] = (), after: int | None = None) -> Subscription:
        """Return the events of *channels* from now on, or after a sequence; 0 is the beginning.

        A pattern is the beginning of names and a star, such as `news/*`: it also hears channels that begin later, and
        tells nothing of their peers. One subscription has at most 100 channels and patterns, and one connection. It
        connects when its first event is asked for, and again whenever the connection is lost.
        """
        close = self._subscriptions.discard
        subscription = Subscription(self._transport, channels, tuple(patterns), after, close)
        self._subscriptions.add(subscription)
        return subscription

    def history(
        self,
        channel: str,
        *,
        after: int = 0,
        before: int | None = None,
        since: str | None = None,
        from_: Moment | None = None,
        to: Moment | None = None,
        sender: int | None = None,
        text: str | None = None,
        order: Literal["asc", "desc"] = "asc",
        page: int = PAGE,
    ) -> Paged[Message]:
        """Yield the messages of *channel*, the oldest (`asc`) or the newest (`desc`) first.

        They lie between two sequences, or two times: *since* is how long ago, such as `10m`, and *from_* and *to* are
        moments. *sender* is a peer's number, and *text* has words that are all in the message, if the gateway has an
        index of words. A page of so many messages is fetched when it is needed.
        """
        places = {"after": after, "before": before, "since": since, "from": _moment(from_), "to": _moment(to)}
        asked = places | {"sender": sender, "text": text, "order": order, "limit": page}
        found = {name: value for name, value in asked.items() if value is not None}
        return Paged(_Pages(self._transport, path_of(channel, "messages"), found, "messages", Message.of).next)

    async def message(self, channel: str, id: str) -> Message:
        """Return one message, by its canonical id or its id in any protocol."""
        found = await self._transport.get(path_of(channel, "messages", quote(id, safe="")))
        return self._transport.read(found, Message.of)

    # Channels and peers

    def channels(self) -> Paged[Channel]:
        """Yield the channels that the key may see, by name."""
        return Paged(_Pages(self._transport, "/v1/channels", {"limit": PAGE}, "channels", Channel.of).next)

    async def channel(self, channel: str) -> Channel:
        """Return a channel; raise `NotFound` if nobody has used it."""
        return self._transport.read(await self._transport.get(path_of(channel)), Channel.of)

    async def create(self, channel: str) -> Channel:
        """Create a channel unless it exists, and return it once it has its address in every protocol."""
        found = json_of(await self._transport.request("PUT", path_of(channel)))
        return self._transport.read(found, Channel.of)

    async def close(self, channel: str) -> None:
        """Take a channel off the list until it is used again; its history and its addresses remain (right: `admin`)."""
        await self._transport.request("DELETE", path_of(channel))

    async def peers(self, channel: str) -> list[Peer]:
        """Return who is in *channel*, on any protocol. A subscription knows it at any time, as `peers`."""
        found = await self._transport.get(path_of(channel, "peers"))
        return self._transport.read(found, lambda answer: [Peer.of(peer) for peer in answer["peers"]])

    async def peer(self, number: int) -> Mapping[str, Any]:
        """Return all that is known of a peer: its names, its connections, where it listens and has published."""
        found: Mapping[str, Any] = await self._transport.get(f"/v1/peers/{number}")
        return found

    # Everything else

    async def get(self, path: str, **parameters: str | int) -> Any:
        """Return the JSON value at any other *path*, such as `/v1/stats`."""
        return await self._transport.get(path, parameters or None)

    async def post(self, path: str, body: bytes, media_type: str, **parameters: str | int | list[str]) -> bytes:
        """Send *body* to any other *path* by POST, and return the body of the response; see docs/reference/rest.md."""
        headers = {"Content-Type": media_type}
        return (await self._transport.request("POST", path, body, headers, parameters or None)).content


def _moment(moment: Moment | None) -> str | int | None:
    """Return *moment* as the gateway takes it; a `datetime` without a time zone is local time."""
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment


class _Pages(Generic[T]):
    """The pages of a list, each of which has the address of the next; *read* makes an item of its JSON."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        parameters: Mapping[str, Any],
        name: str,
        read: Callable[[Mapping[str, Any]], T],
    ) -> None:
        self._transport = transport
        self._path: str | None = path
        self._parameters: Mapping[str, Any] | None = parameters
        self._name = name
        self._read = read

    async def next(self) -> list[T] | None:
        """Return the items of the next page; None after the last."""
        if self._path is None:
            return None
        page = await self._transport.get(self._path, self._parameters)
        with self._transport.reading():
            self._path, self._parameters = _path(page["next"]), None
            return [self._read(item) for item in page[self._name]]


def _path(next: str | None) -> str | None:
    """Return the path of the *next* page; raise `ValueError` for an address elsewhere."""
    if next is not None and not next.startswith("/v1/"):
        raise ValueError(next)
    return next
