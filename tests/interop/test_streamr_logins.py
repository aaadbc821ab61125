"""Genuine clients that have no private key publish by an API key or a session token, and are known by name everywhere.

They name a publisher that they derive from the username which `/users/me` told them.
"""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from adapters.sprout.forest import forest
from gateway.access.keyfile import KeyFile
from tests.adapters.streamr.conftest import Publisher
from tests.conformance.forge import SequoiaForge
from tests.conformance.speakers.sprout import SproutSpeaker
from tests.interop.streamr import ALL, clients
from tests.npm import WAIT, require_clients
from tests.server import Server

MACHINE = "ädä, the machine"
GRANTS = {"anonymous": ["subscribe:*", "history:*"], "streamr:anonymous": ["publish:*"], "sprout:anonymous": ["*:*"]}
USER = Publisher(0xA11CE)
SHORT = f"{USER.address[:6]}…{USER.address[-4:]} (Streamr)"  # in Arbor


async def token_of(rest: httpx.AsyncClient, user: Publisher) -> str:
    """A session token that *user* signs a challenge for."""
    challenge = (await rest.post(f"/api/v1/login/challenge/{user.address}")).json()
    signed = {"challenge": challenge, "signature": user.sign(challenge["challenge"]), "address": user.address}
    return str((await rest.post("/api/v1/login/response", json=signed)).json()["token"])


def test_clients_without_a_private_key_publish_and_are_known_by_name(tmp_path: Path) -> None:
    require_clients()
    key = KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add(MACHINE)

    async def scenario(server: Server) -> None:
        async with (
            httpx.AsyncClient(base_url=f"http://{server.http}", timeout=WAIT) as rest,
            SproutSpeaker(server.http, server.sprout, SequoiaForge(), key) as arbor,
            clients() as crew,
        ):
            token = await token_of(rest, USER)
            for version in ALL:
                stream = f"by {version}"
                readers = [await crew.open(server, each, 0, {}) for each in ALL]
                await arbor.subscribe(stream)
                for reader in readers:
                    await reader.subscribe(stream)
                number = 0
                for way, secret in (("apiKey", key), ("sessionToken", token), ("sessionToken", key)):
                    writer = await crew.open(server, version, 0, {"auth": {way: secret}})
                    name = (await writer.done("me", "me"))["user"]["username"]
                    assert name.lower() == (MACHINE if secret == key else USER.address)
                    await writer.subscribe(stream)
                    for _ in range(2):
                        number += 1
                        await writer.publish(stream, {"n": number})
                        for reader in (writer, *readers):
                            heard = await reader.told("message")
                            assert (heard["content"], heard["signed"]) == ({"n": number}, False)
                            assert heard["id"][4] == "0x" + sha256(name.encode()).hexdigest()
                        heard_there = await arbor.next()
                        assert heard_there.content == {"n": number}
                        assert await author(arbor, heard_there.raw) == (MACHINE if secret == key else SHORT)
                    for sender in (await senders(rest, stream, number))[-2:]:
                        assert sender["identity"] == (name if secret == key else USER.address)
                        assert sender["name"] == (name if secret == key else None)
                for reader in readers:
                    assert await reader.resent(stream, {"last": 9}) == [{"n": n + 1} for n in range(number)]

    with Server(tmp_path / "data", env={"TRELLIS_AUTH__GRANTS": json.dumps(GRANTS)}) as server:
        asyncio.run(asyncio.wait_for(scenario(server), 100))
        assert server.stop() == 0
        assert "Traceback" not in server.log


async def senders(rest: httpx.AsyncClient, stream: str, count: int) -> list[Any]:
    """Who said what REST's history has, once *count* messages are on disk."""
    while len(found := (await rest.get(f"/v1/channels/{stream}/messages")).json()["messages"]) < count:
        await asyncio.sleep(0.02)
    return [message["sender"] for message in found]


async def author(arbor: SproutSpeaker, node: Any) -> str:
    """What Arbor calls the author of *node*."""
    reply = forest.decode(node.raw)
    assert isinstance(reply, forest.Reply)
    (identity,) = await arbor._ask(f"query {{}} 1\n{reply.author}")
    return arbor._author.name(identity.raw)
