"""Genuine clients that have no private key publish by an API key or a session token, and are known by name everywhere.

They name a publisher that they derive from the username which `/users/me` told them.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from adapters.sprout.forest import forest
from gateway.access.keyfile import KeyFile
from tests.adapters.streamr.conftest import Publisher
from tests.arbor import arbor, require_arbor
from tests.conformance.forge import SequoiaForge
from tests.conformance.speakers.sprout import SproutSpeaker
from tests.interop.streamr import ALL, clients
from tests.npm import WAIT, require_clients
from tests.server import Server

MACHINE = "ädä, the machine"
GRANTS = {"anonymous": ["subscribe:*", "history:*"], "streamr:anonymous": ["publish:*"], "sprout:anonymous": ["*:*"]}
QUIET = "one whom nobody hears"
USER, UNHEARD = Publisher(0xA11CE), Publisher(0xB0B)

History = dict[str, list[tuple[Any, str]]]  # by stream, what was said and by whom


async def token_of(rest: httpx.AsyncClient, user: Publisher) -> str:
    """A session token that *user* signs a challenge for."""
    challenge = (await rest.post(f"/api/v1/login/challenge/{user.address}")).json()
    signed = {"challenge": challenge, "signature": user.sign(challenge["challenge"]), "address": user.address}
    return str((await rest.post("/api/v1/login/response", json=signed)).json()["token"])


def test_clients_without_a_private_key_publish_and_are_known_by_name(tmp_path: Path) -> None:
    require_clients()
    program = require_arbor()
    key, quiet = map(KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add, (MACHINE, QUIET))
    arbors, rests, streamrs = (defaultdict[str, list[tuple[Any, str]]](list) for _ in range(3))

    async def speak(server: Server) -> None:
        async with (
            httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest,
            SproutSpeaker(server.http, server.sprout, SequoiaForge(), key) as listener,
            clients() as crew,
        ):
            token, unheard = await token_of(rest, USER), await token_of(rest, UNHEARD)
            # How somebody logs in, who that is, and whether anybody hears him at the time.
            logins = (
                ("apiKey", key, MACHINE, True),
                ("sessionToken", token, USER.address, True),
                ("sessionToken", key, MACHINE, True),
                ("apiKey", quiet, QUIET, False),
                ("sessionToken", unheard, UNHEARD.address, False),
            )
            readers = [await crew.open(server, each, 0, {}) for each in ALL]
            for version in ALL:
                await listener.subscribe(f"by {version}")
                for reader in readers:
                    await reader.subscribe(f"by {version}")
                for way, secret, user, is_heard in logins:
                    stream = f"by {version}" if is_heard else f"unheard by {version}"
                    writer = await crew.open(server, version, 0, {"auth": {way: secret}})
                    name = (await writer.done("me", "me"))["user"]["username"]
                    assert name.lower() == user
                    publisher = "0x" + sha256(name.encode()).hexdigest()
                    if is_heard:
                        await writer.subscribe(stream)
                    for _ in range(2):
                        content = {"n": len(rests[stream])}
                        arbors[stream].append((content, in_arbor(user)))
                        rests[stream].append((content, user))
                        streamrs[stream].append((content, publisher))
                        await writer.publish(stream, content)
                        for reader in (writer, *readers) if is_heard else ():
                            heard = await reader.told("message")
                            assert (heard["content"], heard["signed"]) == (content, False)
                            assert heard["id"][4] == publisher
                        if is_heard:
                            heard_there = await listener.next()
                            assert heard_there.content == content
                            assert await author(listener, heard_there.raw) == in_arbor(user)
            assert await told_by_rest(rest, rests) == rests
            for reader in readers:
                for stream, expected in streamrs.items():
                    found = await reader.recalls(stream, {"last": 10})
                    assert [(message["content"], message["id"][4]) for message in found] == expected

    async def read_later(server: Server) -> None:
        """What was never shown to anybody in Arbor is signed now."""
        async with httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest:
            assert await told_by_rest(rest, rests) == rests
        assert await told_by_arbor(program, server) == arbors

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


async def told_by_arbor(program: Path, server: Server) -> History:
    """All that a genuine client of Arbor has a moment after it came, and what the authors' identities are called."""
    async with arbor(program, server.sprout) as client:
        await client.do("bootstrap")
        await client.settle(0.5)
        nodes = [line for line in client.heard if line["event"] == "stored"]
    names = {node["id"]: node["name"] for node in nodes if node["type"] != "reply"}
    told: History = {}
    for node in nodes:
        if "origin/1" in node.get("metadata", {}):  # or else it is the conversation of a day
            said = json.loads(node["content"]), names[node["author"]]
            told.setdefault(names[node["community"]], []).append(said)
    return {community: sorted(said, key=lambda each: int(each[0]["n"])) for community, said in told.items()}


async def author(listener: SproutSpeaker, node: Any) -> str:
    """What Arbor calls the author of *node*."""
    reply = forest.decode(node.raw)
    assert isinstance(reply, forest.Reply)
    (identity,) = await listener._ask(f"query {{}} 1\n{reply.author}")
    return listener._author.name(identity.raw)
