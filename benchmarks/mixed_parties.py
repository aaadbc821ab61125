"""The four parties of the mixed load: each has a channel, says something in it, and reads its history.

A party speaks and reads by the means of its own protocol; the topic relay has no history, so its party reads over
REST. Eight listeners of the own protocol hear everything, and two of another one (never Sprout's: signing for Arbor
would take most of the time, and is measured by itself).
"""

from __future__ import annotations

import http.client
import json
import selectors
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NoReturn

from adapters.sprout.forest import forest

from .servers import BenchmarkServer
from .sockets import (
    PATIENCE_SECONDS,
    SocketListener,
    connect_events,
    connect_websocket,
    read_until,
    text_frame,
)
from .sprout_load import SproutLoadConnection, announce, subscribe, until_held
from .sprout_nodes import Tree
from .workload import MARK, SETTLE_SECONDS, LoadError

TEXT = MARK + b"x" * 60
OWN, OTHERS = 8, 2  # listeners of the own protocol and of another one
LATEST = 10  # messages that are read


class SproutListener(SproutLoadConnection):
    """An Arbor client: it welcomes what is announced to it."""

    @property
    def heard(self) -> int:
        """How many nodes came."""
        return self.nodes


class MixedClient(ABC):
    """Somebody who speaks on *channel*, and who listens there."""

    def __init__(self, server: BenchmarkServer, channel: str) -> None:
        self.server = server
        self.channel = channel
        self.listeners: Sequence[SocketListener | SproutListener] = ()
        self._rest = http.client.HTTPConnection(server.http, timeout=PATIENCE_SECONDS)
        self._selector = selectors.DefaultSelector()

    def say(self, count: int) -> None:
        """Publish *count* messages at once, and wait until everybody has heard them."""
        wanted = [listener.heard + count for listener in self.listeners]
        self.publish(count)
        while any(listener.heard < want for listener, want in zip(self.listeners, wanted, strict=True)):
            for key, _ in self._selector.select(PATIENCE_SECONDS) or _stalled():
                key.data.take()

    def settle(self) -> None:
        """Read what comes besides: Arbor clients are shown the communities of new channels."""
        while ready := self._selector.select(SETTLE_SECONDS):
            for key, _ in ready:
                key.data.take()

    @abstractmethod
    def publish(self, count: int) -> None:
        """Send *count* messages."""

    def read(self) -> None:
        """Ask for the latest messages."""
        self._ask("GET", f"messages?limit={LATEST}&order=desc", None, "", 200)

    def _ask(self, method: str, what: str, body: bytes | None, kind: str, status: int) -> bytes:
        path = f"/v1/channels/{self.channel}/{what}"
        self._rest.request(method, path, body, {"Content-Type": kind} if kind else {})
        response = self._rest.getresponse()
        answer = response.read()
        if response.status != status:
            raise LoadError(f"{method} {path}: {response.status} {answer!r}")
        return answer

    def attend(self, *listeners: SocketListener | SproutListener) -> None:
        """Hear with *listeners* from now on."""
        self.listeners = listeners
        for listener in listeners:
            self._selector.register(listener.socket, selectors.EVENT_READ, listener)

    def relay_listeners(self, count: int) -> Iterator[SocketListener]:
        """Connect to the topic relay, and subscribe."""
        for _ in range(count):
            wire = connect_websocket(self.server.addresses["relay"])
            wire.sendall(text_frame(json.dumps({"type": 2, "topic": self.channel}).encode()))
            read_until(wire, b'"peers"')
            yield SocketListener(wire)

    def stream_listeners(self, count: int) -> Iterator[SocketListener]:
        """Connect to Streamr, and subscribe."""
        for _ in range(count):
            wire = connect_websocket(self.server.addresses["streamr"])
            wire.sendall(text_frame(json.dumps([2, 9, "s", self.channel, 0, None]).encode()))
            read_until(wire, b'[2,2,"s"')
            yield SocketListener(wire)

    def close(self) -> None:
        """Hang up."""
        self._rest.close()
        self._selector.close()
        for listener in self.listeners:
            listener.socket.close()


class MixedRelayClient(MixedClient):
    """A peer of the topic relay."""

    def __init__(self, server: BenchmarkServer) -> None:
        super().__init__(server, "mixed-relay")
        self._wire = connect_websocket(server.addresses["relay"])
        packet = {"type": 6, "topic": self.channel, "text": TEXT.decode()}
        self._frame = text_frame(json.dumps(packet, separators=(",", ":")).encode())
        self.attend(*self.relay_listeners(OWN), *self.stream_listeners(OTHERS))

    def publish(self, count: int) -> None:
        """Send packets."""
        self._wire.sendall(self._frame * count)

    def close(self) -> None:
        """Hang up."""
        super().close()
        self._wire.close()


class MixedStreamrClient(MixedClient):
    """A Streamr client; its *messages* are signed."""

    STREAM = "mixed-streamr"

    def __init__(self, server: BenchmarkServer, messages: Sequence[bytes]) -> None:
        super().__init__(server, self.STREAM)
        self._wire = connect_websocket(server.addresses["streamr"])
        self._frames = map(text_frame, messages)
        self.attend(*self.stream_listeners(OWN), *self.relay_listeners(OTHERS))

    def publish(self, count: int) -> None:
        """Send PublishRequests."""
        self._wire.sendall(b"".join([next(self._frames) for _ in range(count)]))

    def read(self) -> None:
        """Ask for a resend of the latest."""
        self._wire.sendall(text_frame(json.dumps([2, 11, "r", self.channel, 0, LATEST, None]).encode()))
        read_until(self._wire, b'[2,5,"r"')

    def close(self) -> None:
        """Hang up."""
        super().close()
        self._wire.close()


class MixedSproutClient(MixedClient):
    """An Arbor client; the nodes of its *tree* are signed."""

    def __init__(self, server: BenchmarkServer, tree: Tree) -> None:
        community = forest.decode(tree.community.raw)
        assert isinstance(community, forest.Community)
        super().__init__(server, community.name.blob.decode())
        self._peer = SproutLoadConnection(server.sprout)
        for root in (tree.identity, tree.community):
            announce(self._peer, [root])
            until_held(self._peer, [root.id])
        self._community = tree.community.id.encode()
        self._replies = iter(tree.replies)
        listeners = [SproutListener(server.sprout) for _ in range(OWN)]
        subscribe([self._peer, *listeners], tree.community.id)
        self.attend(*listeners, *self.relay_listeners(OTHERS))

    def publish(self, count: int) -> None:
        """Announce nodes, one a message, and wait for their statuses."""
        announce(self._peer, [next(self._replies) for _ in range(count)])

    def read(self) -> None:
        """Ask for the newest nodes of the community."""
        self._peer.ask(b"leaves_of %%d %b %d\n" % (self._community, LATEST))

    def close(self) -> None:
        """Hang up."""
        super().close()
        self._peer.close()


class MixedRestClient(MixedClient):
    """A program."""

    def __init__(self, server: BenchmarkServer) -> None:
        super().__init__(server, "mixed-rest")
        events = (SocketListener(connect_events(server.addresses["events"], self.channel)) for _ in range(OWN))
        self.attend(*events, *self.relay_listeners(OTHERS))

    def publish(self, count: int) -> None:
        """Post a message, or several as lines."""
        text = b'{"text":"%b"}' % TEXT
        if count == 1:
            self._ask("POST", "messages", text, "application/json", 201)
        else:
            self._ask("POST", "messages", (text + b"\n") * count, "application/x-ndjson", 200)


def _stalled() -> NoReturn:
    raise LoadError("the listeners heard nothing more")
