"""What a link exchanges with the server that it dials: which channels, and which way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway.core.channels import Channels, valid_name
from gateway.core.errors import Throttled, Unavailable
from gateway.core.session import Session
from gateway.core.watchers import MAX_PREFIXES

ANY: Final = "*"  # at the end of a pattern: every name that begins like this
PORTS: Final = {"ws": 80, "wss": 443}
SCAN: Final = 1_000  # names of channels that are looked through at a time, once a second


class Exchange(BaseModel):
    """The channels that are exchanged, and the direction."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    channels: Annotated[
        tuple[str, ...],
        Field(min_length=1, max_length=MAX_PREFIXES, description="Names of channels, or patterns such as `news/*`."),
    ]
    direction: Annotated[
        Literal["in", "out", "both"],
        Field(description="Whether messages come `in` from there, go `out` to it, or `both`."),
    ] = "both"

    @field_validator("channels")
    @classmethod
    def _check_channels(cls, channels: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in channels:
            name = pattern.removesuffix(ANY)
            if not valid_name(name) and not (pattern.endswith(ANY) and valid_name(name + "x")):
                raise ValueError(f"{pattern!r} is neither a channel nor a pattern such as news/*")
        return channels

    @property
    def receives(self) -> bool:
        """Whether messages come from there."""
        return self.direction != "out"

    @property
    def sends(self) -> bool:
        """Whether messages go there."""
        return self.direction != "in"

    @property
    def names(self) -> list[str]:
        """The channels that are named."""
        return [each for each in self.channels if not each.endswith(ANY)]

    @property
    def prefixes(self) -> list[str]:
        """What the names of other channels begin with."""
        return [each.removesuffix(ANY) for each in self.channels if each.endswith(ANY)]

    def matches(self, channel: str) -> bool:
        """Whether *channel* is exchanged."""
        return channel in self.channels or any(map(channel.startswith, self.prefixes))


class WebSocketPeer(Exchange):
    """A server that is dialled by WebSocket."""

    url: Annotated[str, Field(description="Its address, such as `wss://relay.example/relay`.")]

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname or parts.fragment or parts.username or not _has_port(url):
            raise ValueError("write ws://HOST:PORT/PATH, or wss:// for TLS")
        return url


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class LinkSession(Session):
    """A connection to a server that the gateway dials.

    `take` handles what arrives. If it raises `Throttled` or `Unavailable`, it must have changed nothing: the data is
    put back, and nothing is read until the next tick, so no message is lost.
    """

    paused = False  # nothing is read until the next tick: a rate is exceeded, or the log cannot be written

    @property
    def overloaded(self) -> bool:
        """Whether it has to wait."""
        return self.paused or super().overloaded

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Act on what arrived."""

    def handle(self, data: bytes) -> None:
        """Act on what arrived, now or later."""
        try:
            self.take(data)
        except (Throttled, Unavailable):
            self.paused = True
            self.put_back(data)

    def pace(self, channel: str) -> None:
        """Raise `Throttled` if too much arrived for *channel*; the other side is not told of it, nor penalised."""
        self.bus.pace(self.principal, self.who, channel)

    def go_on(self) -> None:
        """Continue to read after a pause."""
        self.paused = False
        self.resume()
        self.wake()


class ChannelSearch:
    """Finds the channels that an *exchange* matches, once each: those that are named, and others as they begin."""

    def __init__(self, channels: Channels, exchange: Exchange, limit: int) -> None:
        self._channels = channels
        self._exchange = exchange
        self._limit = limit
        self._found: set[str] = set()
        self._scanned = ""

    def next(self) -> Iterator[str]:
        """Yield new matches among the next `SCAN` channels, beginning again after the last; at most *limit* in all."""
        names = list(self._exchange.names)
        if self._exchange.prefixes:
            listed = self._channels.listed(self._scanned, SCAN)
            self._scanned = listed[-1] if len(listed) == SCAN else ""
            names += filter(self._exchange.matches, listed)
        for name in names:
            if name not in self._found and len(self._found) < self._limit:
                self._found.add(name)
                yield name
