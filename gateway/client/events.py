"""The events of a subscription."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .records import Message, Peer
from .sse import Event as ServerSentEvent


@dataclass(frozen=True, slots=True)
class Welcome:
    """The subscription is connected to *channel*, or by *pattern*, in which case *channel* is None.

    *peer* is what others see of the subscription, *peers* are the others in the channel.
    """

    channel: str | None
    peer: Peer
    peers: tuple[Peer, ...]
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A peer joined a channel."""

    peer: Peer
    channel: str


@dataclass(frozen=True, slots=True)
class Left:
    """A peer left a channel."""

    peer: Peer
    channel: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages after one sequence and before another are no longer kept."""

    after: int
    before: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The connection is lost; the subscription connects again in so many *seconds*, and continues."""

    reason: str
    seconds: float


Event: TypeAlias = Welcome | Message | Joined | Left | Gap | Interrupted


def _welcome(value: Mapping[str, Any], _text: str) -> Welcome:
    peers = tuple(map(Peer.of, value["peers"]))
    return Welcome(value.get("channel"), Peer.of(value), peers, value.get("pattern"))


KINDS: dict[str, Callable[[Mapping[str, Any], str], Event]] = {
    "welcome": _welcome,
    "message": Message.of,
    "direct": Message.of,
    "joined": lambda value, _: Joined(Peer.of(value), value["channel"]),
    "left": lambda value, _: Left(Peer.of(value), value["channel"]),
    "gap": lambda value, _: Gap(value["after"], value["before"]),
}


def parse(event: ServerSentEvent) -> Event | None:
    """Return what *event* says; None for a kind that a later gateway may have."""
    kind = KINDS.get(event.name)
    return None if kind is None else kind(json.loads(event.data), event.data)
