"""What the conformance suite asks of a peer, whatever its protocol."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from gateway.demo_clients import WAIT, Client, ReceivedMessage, WebSocketClient

GARBAGE = ("[" * 5_000, b"\x3d\xd8", "null", "x" * 70_000)  # no packet and no frame


@dataclass(frozen=True)
class Address:
    """Where a gateway is: its HTTP and its Sprout address, and the keys of three peers where it wants some."""

    http: str
    sprout: str
    keys: tuple[str | None, ...] = (None, None, None)


class Presence(NamedTuple):
    """Somebody came (or left): a number, or in Arbor the id of an identity."""

    channel: str
    who: Any
    here: bool


class Speaker(Client):
    """What the suite asks of a peer beyond `Client`: subscribe, say, direct and `heard` are there."""

    echoes: ClassVar[bool]  # whether a publisher that listens hears itself
    copies: ClassVar[int] = 1  # how often a message is heard that was said twice under one native id
    refused: ClassVar[str]  # what is told of a direct message that reaches nobody
    arrivals: ClassVar[bool] = True  # whether it is told who comes
    departures: ClassVar[bool] = True  # and who leaves
    listing: ClassVar[bool] = False  # whether the answer to `subscribe` tells who is there
    telling: ClassVar[bool] = False  # or is told afterwards
    oversized: ClassVar[Any]  # what it may say and others have no room for
    too_long_for: ClassVar[frozenset[str]]  # those others

    presence: asyncio.Queue[Presence]

    @abstractmethod
    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone."""

    @abstractmethod
    async def leave(self, channel: str) -> None:
        """Hear *channel* no more."""

    @abstractmethod
    async def said_before(self, channel: str) -> list[Any] | None:
        """What was said on *channel*, as the protocol's own history has it; None where it has none."""

    @abstractmethod
    async def say_twice(self, channel: str, content: Any) -> None:
        """Say *content*, and the very same message again."""

    @abstractmethod
    async def babble(self) -> None:
        """Send what no program of this protocol sends; the gateway answers as it should."""

    async def settle(self) -> None:
        """Wait until all that was said is taken; where a protocol accepts what is said it was waited for then."""

    async def take_mail(self, channel: str, number: int) -> None:
        """Do what it takes to hear direct messages in *channel*, where this peer has that *number*."""

    async def listed(self) -> list[int] | None:
        """The numbers of those who were there, as the last `subscribe` told; None where it tells nothing."""
        return None

    async def tell_presence(self, channel: str, *, here: bool) -> None:
        """Say to others of the same protocol that this peer is *here* or not; in most, the gateway does that."""

    async def recognises(self, who: Any, number: int, name: str | None) -> bool:  # noqa: ARG002  # most have no names
        """Whether *who*, of whom this peer was told, is the one with that *number* and *name*."""
        return bool(who == number)

    async def refusal(self, request: Awaitable[None]) -> str:
        """What this peer is told when it makes a *request* that is refused; empty if nothing."""
        try:
            await request
        except ValueError as error:
            return str(error)
        return ""

    async def answer(self, question: ReceivedMessage, id: str, content: dict[str, str]) -> None:
        """Say *content* in answer to the *question* that was heard, whose canonical id is *id*: mostly `inReplyTo`."""
        await self.publish(question.channel, {**content, "inReplyTo": id})

    def answered(self, heard: ReceivedMessage) -> Any:
        """The id of what *heard* is an answer to, as this protocol shows it."""
        return heard.content.get("inReplyTo")


async def answer_to(bad: str | bytes, client: WebSocketClient) -> Any:
    """What is answered to *bad* on a connection of its own, dialled as *client* does."""
    async with await client.dial() as socket:
        await socket.send(bad)
        return json.loads(await asyncio.wait_for(socket.recv(), WAIT))
