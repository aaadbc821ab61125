"""Peers of all four protocols at an `InProcessGateway`, which find every mark in what they receive.

A direct message has a mark of its own. Whatever leaves a connection is searched for marks, Arbor's nodes inside of
their base64 too.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request as HttpRequest

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire import base64url
from gateway.adapter import ConnectionRequest
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.http import history
from gateway.http.callers import Caller
from gateway.http.events import EventSession
from gateway.http.media import parse_content
from gateway.http.problems import Problem
from gateway.http.publish import Publisher
from gateway.http.selection import Selection
from tests.properties.in_process_gateway import NOW, InProcessGateway
from tests.still import Clock

KEYS = Path(__file__).parent.parent / "vectors" / "sprout" / "keys"
MARK = re.compile(rb"secret (\d{6})\.")
BASE64 = re.compile(rb"[A-Za-z0-9_-]{60,}")


def marks(data: bytes) -> Counter[int]:
    """The marks in *data*, and in the nodes in it."""
    found = Counter(map(int, MARK.findall(data)))
    for text in BASE64.findall(data):
        found.update(map(int, MARK.findall(urlsafe_b64decode(text[: len(text) // 4 * 4] + b"===="[: -len(text) % 4]))))
    return found


class VectorAuthor:
    """An Arbor author, whose key is among the vectors."""

    def __init__(self, name: str) -> None:
        self.key = SecretKey((KEYS / f"{name}.privkey").read_bytes())
        self.raw = forest.sign_identity(name, self.key, NOW)
        self.id = forest.node_id(self.raw)


@cache
def author(name: str) -> VectorAuthor:
    """The author of that name."""
    return VectorAuthor(name)


class Party:
    """A peer: its connection, what it joined, and how often it saw which mark."""

    def __init__(self, instance: InProcessGateway, session: Session) -> None:
        self.instance = instance
        self.session = session
        self.joined: set[str] = set()
        self.seen: Counter[int] = Counter()
        self.sent = 0

    @property
    def sessions(self) -> Iterable[Session]:
        """Its connections."""
        return [self.session]

    @property
    def number(self) -> int:
        """By which number others know it as a sender."""
        return self.session.who.number

    def numbers(self, channel: str, *, publishing: bool = False) -> set[int]:  # noqa: ARG002  # it matters to Arbor alone
        """The numbers by which it can be reached in *channel*; by *publishing* it may get another one."""
        return {self.session.peer.number, self.session.who.number} if channel in self.joined else set()

    def read(self) -> None:
        """Read what was sent to it."""
        for session in self.sessions:
            while data := session.data_to_send():
                self.receive(b"\n".join(data))

    def receive(self, data: bytes) -> None:
        """Count the marks in *data*."""
        self.seen.update(marks(data))

    def send(self, value: Any) -> None:
        """Send a WebSocket message."""
        self.session.receive_data(json.dumps(value).encode())

    def join(self, channel: str) -> None:
        """Subscribe."""
        self.joined.add(channel)

    def leave(self, channel: str) -> None:
        """Unsubscribe."""
        self.joined.discard(channel)

    def publish(self, channel: str, text: str) -> None:
        """Publish to everybody in the channel."""

    def send_direct(self, channel: str, number: int, text: str) -> bool | None:
        """Send a direct message; whether it was delivered, None if the protocol does not tell."""

    def request_history(self, channel: str, strange: list[str]) -> None:
        """Request all history; *strange* are ids of private nodes."""

    def disconnect(self) -> None:
        """Close all connections."""
        for session in self.sessions:
            session.receive_eof()


class RelayParty(Party):
    """A peer of the topic relay."""

    def __init__(self, instance: InProcessGateway) -> None:
        request = ConnectionRequest(Principal("topic_relay:anonymous"), "/relay")
        super().__init__(instance, instance.adapters["topic_relay"].accept(request))

    def join(self, channel: str) -> None:
        self.send({"type": 2, "topic": channel})
        super().join(channel)

    def leave(self, channel: str) -> None:
        self.send({"type": 3, "topic": channel})
        super().leave(channel)

    def publish(self, channel: str, text: str) -> None:
        self.send({"type": 6, "topic": channel, "content": text})

    def send_direct(self, channel: str, number: int, text: str) -> None:
        self.send({"type": 4, "topic": channel, "dst": number, "content": text})


class StreamrParty(Party):
    """A Streamr client without a key."""

    def __init__(self, instance: InProcessGateway) -> None:
        versions = {"controlLayerVersion": "2", "messageLayerVersion": "32"}
        request = ConnectionRequest(Principal("streamr:anonymous"), "/api/v1/ws", versions)
        super().__init__(instance, instance.adapters["streamr"].accept(request))
        self.inboxes: set[str] = set()

    def join(self, channel: str) -> None:
        self.send([2, 9, "in", channel, 0, None])
        super().join(channel)

    def open_inbox(self, channel: str, number: int) -> None:
        """Subscribe to an inbox, its own or (in vain) somebody else's."""
        self.send([2, 9, "inbox", f"{channel}/@{number}", 0, None])
        if number == self.number:
            self.inboxes.add(channel)
            super().join(channel)

    def leave(self, channel: str) -> None:
        self.send([2, 10, "out", channel, 0])
        if channel not in self.inboxes:
            super().leave(channel)

    def publish(self, channel: str, text: str) -> None:
        self._publish(channel, text)

    def send_direct(self, channel: str, number: int, text: str) -> None:
        self._publish(f"{channel}/@{number}", text)

    def request_history(self, channel: str, strange: list[str]) -> None:
        del strange
        for stream in (channel, f"{channel}/@{self.number}"):
            self.send([2, 11, "last", stream, 0, 1000, None])
            self.send([2, 12, "from", stream, 0, [0, 0], None, None])

    def _publish(self, stream: str, text: str) -> None:
        self.sent += 1
        id = [stream, 0, self.instance.gateway.bus.clock(), self.sent, "", "c"]
        content = json.dumps({"content": text})
        self.send([2, 8, "say", [32, id, None, 27, 0, 0, None, content, None, 0, None], None])


class SproutParty(Party):
    """An Arbor client that holds all it is shown, as wisteria does."""

    def __init__(self, instance: InProcessGateway, name: str, held: dict[str, bytes] | None = None) -> None:
        super().__init__(instance, instance.adapters["sprout"].accept(ConnectionRequest(Principal("sprout:anonymous"))))
        self.author = author(name)
        self.name = name
        self.held = {} if held is None else held  # private nodes
        self.statuses: dict[int, bytes] = {}
        self.last: dict[str, bytes] = {}

    def receive(self, data: bytes) -> None:
        super().receive(data)
        for line in data.split(b"\n"):
            words = line.split(b" ")
            if words[0] == b"status":
                self.statuses[int(words[1])] = words[2]
            elif words[0].startswith(b"SHA512") and len(words) == 2 and marks(line):
                self.held[words[0].decode()] = base64url.decode(words[1])

    def join(self, channel: str) -> None:
        self._ask(f"subscribe 0 {self._community(channel)}\n")
        super().join(channel)

    def leave(self, channel: str) -> None:
        self._ask(f"unsubscribe 0 {self._community(channel)}\n")
        super().leave(channel)

    def numbers(self, channel: str, *, publishing: bool = False) -> set[int]:
        known = (
            self.instance.gateway.peers.find("sprout", self.author.id)
            if publishing and channel in self.joined
            else None
        )
        return super().numbers(channel) | (set() if known is None else {known.number})

    def publish(self, channel: str, text: str) -> None:
        community = self._community(channel)
        self.announce(self._reply(forest.ReplyPosition(community, 1, community, forest.NULL_ID), text, {}))

    def send_direct(self, channel: str, number: int, text: str) -> bool:
        community = self._community(channel)
        place = forest.ReplyPosition(community, 1, community, forest.NULL_ID)
        return self._send_private(self._reply(place, text, {"to/1": b"%d" % number}))

    def reply(self, id: str, text: str) -> bool:
        """Answer a private node as if it were any other."""
        node = forest.decode(self.held[id])
        assert isinstance(node, forest.Reply)
        return self._send_private(self._reply(forest.position_below(id, node), text, {}))

    def announce(self, *nodes: bytes) -> None:
        """Announce nodes, behind the author."""
        lines = [f"{forest.node_id(raw)} {base64url.encode(raw).decode()}\n" for raw in (self.author.raw, *nodes)]
        self.sent += 1
        self._ask(f"announce {self.sent} {len(lines)}\n" + "".join(lines))

    def request_history(self, channel: str, strange: list[str]) -> None:
        community = self._community(channel)
        self._ask(f"leaves_of 0 {community} 1024\nlist 2 2 1024\n")
        if strange:
            self._ask(f"query 3 {len(strange)}\n" + "\n".join(strange) + "\n")
        for id in strange[-5:]:
            self._ask(f"ancestry 4 {id} 9\nleaves_of 5 {id} 9\n")

    def _send_private(self, node: bytes) -> bool:
        self.announce(node)
        for _ in range(2):  # a request is not handled before answers of more than 64 KiB have been read
            self.instance.settle(synced=True)  # the first time with the identity, which has to be on disk
            self.read()
        self.last = {forest.node_id(node): node}
        return (
            self.statuses.get(self.sent) == b"0"
        )  # none yet: what it answers is not known any more, and is waited for

    def _ask(self, text: str) -> None:
        self.session.receive_data(text.encode())

    def _community(self, channel: str) -> str:
        found = self.instance.gateway.channels.address("sprout", channel)
        assert found is not None
        return found

    def _reply(self, place: forest.ReplyPosition, text: str, pairs: dict[str, bytes]) -> bytes:
        clock = self.instance.gateway.bus.clock
        assert isinstance(clock, Clock)
        clock.now += 1  # two nodes never have one moment
        content = forest.Content(text.encode())
        return forest.sign_reply(place, content, self.author.id, self.author.key, clock.now, twig.encode(pairs))


class RestParty(Party):
    """A program: a stream of events for each channel, and requests."""

    def __init__(self, instance: InProcessGateway) -> None:
        self.streams: dict[str, EventSession] = {}
        self.instance = instance
        self.joined, self.seen = set(), Counter()
        self.ids: list[str] = []

    @property
    def sessions(self) -> Iterable[Session]:
        return list(self.streams.values())

    @property
    def number(self) -> int:
        return self._caller().who.number

    def numbers(self, channel: str, *, publishing: bool = False) -> set[int]:  # noqa: ARG002
        return {self.streams[channel].peer.number} if channel in self.streams else set()

    def join(self, channel: str) -> None:
        if channel not in self.streams:
            self.streams[channel] = EventSession(self.instance.gateway, self._caller(), Selection((channel,)))
        super().join(channel)

    def leave(self, channel: str) -> None:
        if channel in self.streams:
            self.streams.pop(channel).receive_eof()
        super().leave(channel)

    def publish(self, channel: str, text: str) -> None:
        Publisher(self._caller(), channel, None).publish(parse_content(json.dumps({"content": text}).encode()))

    def send_direct(self, channel: str, number: int, text: str) -> bool:
        request = self._request({"content": text})
        try:
            answer = self.instance.loop.run(self.instance.rest.direct(request, channel, number))
        except Problem:
            return False
        self.ids.append(json.loads(bytes(answer.body))["id"])
        return True

    def request_history(self, channel: str, strange: list[str]) -> None:
        stream = EventSession(self.instance.gateway, self._caller(), Selection((channel,)), 0)
        self.instance.settle(synced=True)
        while data := stream.data_to_send():
            self.receive(b"".join(data))
        stream.receive_eof()
        for id in (*self.ids, *strange):
            with pytest.raises(Problem, match="there is no message"):
                history.find_message(self.instance.gateway, channel, id)

    def _caller(self) -> Caller:
        return Caller(self.instance.gateway, self._request(None))

    def _request(self, value: Any) -> HttpRequest:
        async def read() -> Any:
            return {"type": "http.request", "body": json.dumps(value).encode(), "more_body": False}

        return HttpRequest({"type": "http", "headers": [], "client": ("127.0.0.1", 1)}, read)


KINDS: dict[str, Callable[[InProcessGateway], Party]] = {
    "topic_relay": RelayParty,
    "streamr": StreamrParty,
    "rest": RestParty,
    "alice": lambda instance: SproutParty(instance, "alice"),
    "bob": lambda instance: SproutParty(instance, "bob"),
}
