"""What clients send and are answered on the wire of each protocol, right or wrong."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire import base64url
from tests.server import Server

KEYS = Path(__file__).parents[1] / "vectors/sprout/keys"
SILENCE = None
QUIET = 0.25  # seconds after which nothing will come
PATIENCE = 60.0  # seconds; what is expected comes sooner
NOBODY = 1 << 40


def packet(kind: int, topic: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "topic": topic, **fields}


def publish(stream: str, content: str) -> list[Any]:
    id = [stream, 0, "NOW", 0, "", f"chain {time.time_ns()}"]  # `ask` says when
    return [2, 8, "p", [32, id, None, 27, 0, 0, None, content, None, 0, None], None]


def fits(answer: Any, wanted: Any) -> bool:
    """Whether *answer* is what is *wanted*, as far as that says."""
    if isinstance(wanted, dict):
        return isinstance(answer, dict) and wanted.items() <= answer.items()
    if isinstance(wanted, list):
        return isinstance(answer, list) and all(b is ... or a == b for a, b in zip(answer, wanted, strict=False))
    return bool(answer == wanted)


async def ask(url: str, before: list[Any], sent: Any, own: int | None, *, silent: bool = False) -> Any:
    """What comes back for *sent* on a connection that is known as *own*; and then it still lives.

    If nothing should come (*silent*), that is believed after a moment.
    """
    async with connect(url, compression=None) as socket:
        for frame in before:
            await socket.send(json.dumps(frame))
            await socket.recv()
        text = sent if isinstance(sent, str) else json.dumps(sent)
        now = str(time.time_ns() // 1_000_000)
        await socket.send(text.replace('"OWN"', str(own)).replace("OWN", str(own)).replace('"NOW"', now))
        try:
            answer = json.loads(await asyncio.wait_for(socket.recv(), QUIET if silent else PATIENCE))
        except TimeoutError:
            answer = SILENCE
        await asyncio.wait_for(await socket.ping(), PATIENCE)
        return answer


# Arbor


class RawAuthor:
    """Makes nodes that are as new as they are said to be."""

    def __init__(self) -> None:
        self.key = SecretKey((KEYS / "alice.privkey").read_bytes())
        self.now = time.time_ns() // 1_000_000
        self.identity = line(forest.sign_identity("alice", self.key, self.now))
        self.id = self.identity.split(" ")[0]

    def community(self, name: bytes) -> str:
        self.now += 1
        head = (forest.NULL_ID, 0, self.now, forest.Content(b"", forest.TWIG), self.id)
        node = forest.Community(*head, forest.Content(name), b"")
        signature = self.key.sign(forest.signed_part(node, forest.encode(node)), self.now // 1000)
        return line(forest.encode(forest.Community(*head, forest.Content(name), signature)))

    def reply(self, community: str, text: str, **pairs: str) -> str:
        self.now += 1
        id = community.split(" ")[0]
        place = forest.ReplyPosition(id, 1, id, forest.NULL_ID)
        metadata = twig.encode({key.replace("_", "/"): value.encode() for key, value in pairs.items()})
        content = forest.Content(text.encode())
        return line(forest.sign_reply(place, content, self.id, self.key, self.now, metadata))


def line(raw: bytes) -> str:
    return f"{forest.node_id(raw)} {base64url.encode(raw).decode()}"


async def announce(server: Server, *nodes: str, community: str = "") -> int:
    """The status of the last of *nodes*, each of which is announced by itself; first the community is subscribed to."""
    host, _, port = server.sprout.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    if community:
        writer.write(f"subscribe 1 {community}\n".encode())
    for id, node in enumerate(nodes, 9):
        writer.write(f"announce {id} 1\n{node}\n".encode())
    statuses: dict[int, int] = {}  # those that need no disk come first
    while len(statuses) < len(nodes):
        verb, *rest = (await asyncio.wait_for(reader.readline(), PATIENCE)).decode().split()
        if verb == "status" and rest[0] != "1":
            statuses[int(rest[0])] = int(rest[1])
    writer.close()
    return statuses[max(statuses)]
