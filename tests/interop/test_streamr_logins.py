"""Genuine clients that have no private key publish by an API key or a session token, and are known by name everywhere.

They name a publisher that they derive from the username which `/users/me` told them.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from adapters.sprout.forest import forest
from gateway.access.keyfile import KeyFile
from tests.adapters.streamr.conftest import Publisher
from tests.arbor import arbor, require_arbor
from tests.conformance.forge import SequoiaForge
from tests.conformance.speakers.sprout import SproutSpeaker
from tests.interop.streamr import ALL, ClientPool, GenuineClient, clients
from tests.npm import WAIT, require_clients
from tests.server import Server

MACHINE = "ädä, the machine"
GRANTS = {"anonymous": ["subscribe:*", "history:*"], "streamr:anonymous": ["publish:*"], "sprout:anonymous": ["*:*"]}
QUIET = "one whom nobody hears"
USER, UNHEARD = Publisher(0xA11CE), Publisher(0xB0B)

History = dict[str, list[tuple[Any, str]]]  # by stream, contents and publishers


async def token_of(rest: httpx.AsyncClient, user: Publisher) -> str:
    """A session token that *user* signs a challenge for."""
    challenge = (await rest.post(f"/api/v1/login/challenge/{user.address}")).json()
    signed = {"challenge": challenge, "signature": user.sign(challenge["challenge"]), "address": user.address}
    return str((await rest.post("/api/v1/login/response", json=signed)).json()["token"])


class Expected:
    """The messages, and their publishers by the names of Arbor, of REST and of Streamr."""

    def __init__(self) -> None:
        self.arbor, self.rest, self.streamr = (defaultdict[str, list[tuple[Any, str]]](list) for _ in range(3))

    def add(self, stream: str, name: str, user: str) -> tuple[Any, str]:
        """The next content of *user* in *stream*, and the publisher that a client calls itself by its user *name*."""
        content, publisher = {"n": len(self.rest[stream])}, "0x" + sha256(name.encode()).hexdigest()
        self.arbor[stream].append((content, in_arbor(user)))
        self.rest[stream].append((content, user))
        self.streamr[stream].append((content, publisher))
        return content, publisher


async def check_heard(content: Any, publisher: str, readers: Iterable[GenuineClient]) -> None:
    """Every reader is told the unsigned message of *publisher*."""
    for reader in readers:
        heard = await reader.next_event("message")
        assert (heard["content"], heard["signed"]) == (content, False)
        assert heard["id"][4] == publisher


Login = tuple[str, str, str, bool]  # by what, which secret, who that is, and whether anybody hears him at the time


def logins_of(key: str, quiet: str, token: str, unheard: str) -> list[Login]:
    """Every way to log in."""
    return [
        ("apiKey", key, MACHINE, True),
        ("sessionToken", token, USER.address, True),
        ("sessionToken", key, MACHINE, True),
        ("apiKey", quiet, QUIET, False),
        ("sessionToken", unheard, UNHEARD.address, False),
    ]


class Scene(NamedTuple):
    """A gateway with genuine clients that listen, and what they are expected to receive."""

    server: Server
    pool: ClientPool
    listener: SproutSpeaker
    readers: list[GenuineClient]
    expected: Expected


async def log_in_and_publish(scene: Scene, version: str, login: Login) -> None:
    """A client of *version* publishes two messages, and every listener receives them, or there is none."""
    way, secret, user, is_heard = login
    stream = f"by {version}" if is_heard else f"unheard by {version}"
    writer = await scene.pool.open(scene.server, version, 0, {"auth": {way: secret}})
    name = (await writer.done("me", "me"))["user"]["username"]
    assert name.lower() == user
    if is_heard:
        await writer.subscribe(stream)
    for _ in range(2):
        content, publisher = scene.expected.add(stream, name, user)
        await writer.publish(stream, content)
        if is_heard:
            await check_heard(content, publisher, (writer, *scene.readers))
            heard_there = await scene.listener.next()
            assert heard_there.content == content
            assert await author(scene.listener, heard_there.raw) == in_arbor(user)


def test_clients_without_a_private_key_publish_and_are_known_by_name(tmp_path: Path) -> None:
    require_clients()
    program = require_arbor()
    key, quiet = map(KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add, (MACHINE, QUIET))
    expected = Expected()

    async def speak(server: Server) -> None:
        async with (
            httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest,
            SproutSpeaker(server.http, server.sprout, SequoiaForge(), key) as listener,
            clients() as pool,
        ):
            token, unheard = await token_of(rest, USER), await token_of(rest, UNHEARD)
            logins = logins_of(key, quiet, token, unheard)
            readers = [await pool.open(server, each, 0, {}) for each in ALL]
            scene = Scene(server, pool, listener, readers, expected)
            for version in ALL:
                await listener.subscribe(f"by {version}")
                for reader in readers:
                    await reader.subscribe(f"by {version}")
                for login in logins:
                    await log_in_and_publish(scene, version, login)
            assert await told_by_rest(rest, expected.rest) == expected.rest
            for reader in readers:
                for stream, messages in expected.streamr.items():
                    found = await reader.resend_messages(stream, {"last": 10})
                    assert [(message["content"], message["id"][4]) for message in found] == messages

    async def read_later(server: Server) -> None:
        """What was never shown to anybody in Arbor is signed now."""
        async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest:
            assert await told_by_rest(rest, expected.rest) == expected.rest
        count = sum(map(len, expected.arbor.values()))
        assert await told_by_arbor(program, server, count) == expected.arbor

    for scenario in (speak, read_later):
        with Server(tmp_path / "data", env={"TRELLIS_AUTH__GRANTS": json.dumps(GRANTS)}) as server:
            asyncio.run(asyncio.wait_for(scenario(server), 100))
            assert server.stop() == 0
            assert "Traceback" not in server.log


def in_arbor(user: str) -> str:
    """What Arbor calls an address, or the name of a key."""
    return f"{user[:6]}…{user[-4:]} (Streamr)" if user.startswith("0x") else user


async def told_by_rest(rest: httpx.AsyncClient, awaited: History) -> History:
    """The history of REST, once all that is *awaited* is on disk; who has a key is known by its name."""
    told: History = {}
    for stream, messages in awaited.items():
        while len(found := (await rest.get(f"/v1/channels/{stream}/messages")).json()["messages"]) < len(messages):
            await asyncio.sleep(0.02)
        for message in found:
            sender = message["sender"]
            assert sender["name"] == (None if sender["identity"].startswith("0x") else sender["identity"])
            told.setdefault(stream, []).append((message["content"], sender["identity"]))
    return told


async def told_by_arbor(program: Path, server: Server, count: int) -> History:
    """All that a genuine client of Arbor has once it has *count* messages, and what the authors' identities are called.

    A message has an origin; other replies are the conversations of a day.
    """
    async with arbor(program, server.sprout) as client:
        await client.do("bootstrap")
        await client.settle(0.5, lambda: sum(is_message(line) for line in client.events) >= count)
        nodes = [line for line in client.events if line["event"] == "stored"]
    names = {node["id"]: node["name"] for node in nodes if node["type"] != "reply"}
    told: History = {}
    for node in nodes:
        if is_message(node):
            said = json.loads(node["content"]), names[node["author"]]
            told.setdefault(names[node["community"]], []).append(said)
    return {community: sorted(said, key=lambda each: int(each[0]["n"])) for community, said in told.items()}


def is_message(line: dict[str, Any]) -> bool:
    """Whether a client tells by *line* that it has stored a message."""
    return line["event"] == "stored" and "origin/1" in line.get("metadata", {})


async def author(listener: SproutSpeaker, node: Any) -> str:
    """What Arbor calls the author of *node*."""
    reply = forest.decode(node.raw)
    assert isinstance(reply, forest.Reply)
    (identity,) = await listener._ask(f"query {{}} 1\n{reply.author}")
    return listener._author.name(identity.raw)
