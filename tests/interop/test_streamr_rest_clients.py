"""Genuine Streamr clients make every REST call that they have, to a real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.access.authorization import KeyFile
from tests.interop.streamr import ALL
from tests.npm import NodeClient, node_client, require_clients
from tests.server import Server

KEY = f"0x{0x5EED:064x}"
ADDRESS = "0xf52b978d064a638e263ad7b397172e414c20ba84"  # of KEY
GRANTS = {"TRELLIS_AUTH__GRANTS": '{"anonymous": ["*:*", "admin:*"]}'}  # without one nobody administers
OTHER = "0x" + "ab" * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    with Server(tmp_path_factory.mktemp("data"), env=GRANTS) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


class ClientProcess:
    """A client that is asked for one thing after another."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    async def call(self, method: str, *args: Any) -> Any:
        """What a method of the client gives."""
        self._client.do("call", method=method, args=args)
        return (await self._client.next_event("result"))["value"]

    async def stream(self, id: str, method: str, *args: Any, **fields: Any) -> Any:
        """What a method of the stream *id* gives, once *fields* are set."""
        self._client.do("stream", id=id, method=method, args=args, set=fields)
        return (await self._client.next_event("result"))["value"]

    async def fails(self, method: str, *args: Any) -> str:
        """The error that a method of the client ends in."""
        self._client.do("call", method=method, args=args)
        return str((await self._client.next_event("error"))["message"])


@asynccontextmanager
async def asked(server: Server, version: str, auth: dict[str, str] | None = None) -> AsyncIterator[ClientProcess]:
    given = json.dumps({"privateKey": KEY} if auth is None else auth)
    async with node_client("streamr_rest.cjs", version, f"http://{server.http}/api/v1", given) as client:
        yield ClientProcess(client)


async def streams(client: ClientProcess, version: str) -> None:
    """Streams are made, found, changed and taken away."""
    id = f"made/{version}"
    made = await client.call("createStream", {"id": id, "name": id, "partitions": 3, "description": "mine"})
    assert (made["id"], made["partitions"], made["description"]) == (id, 3, "mine")
    assert await client.call("getStream", id) == made
    assert (await client.call("getStreamByName", id))["id"] == id
    assert id in [found["id"] for found in await client.call("listStreams", {"search": "made"})]
    assert await client.call("listStreams", {"name": "nowhere"}) == []
    assert (await client.call("getOrCreateStream", {"name": id}))["id"] == id
    other = f"{id}/other"
    assert (await client.call("getOrCreateStream", {"name": other}))["id"] == other
    changed = await client.stream(id, "update", description="ours", requireSignedData=True)
    assert (changed["description"], changed["requireSignedData"], changed["partitions"]) == ("ours", True, 3)
    assert await client.call("getStream", id) == changed
    await client.stream(id, "delete")
    assert (await client.call("getStream", id))["partitions"] == 1


async def data(client: ClientProcess, version: str) -> None:
    """What is published by HTTP is kept."""
    id = f"http/{version}"
    for number in range(3):
        await client.call("publishHttp", id, {"n": number, "text": "héllo"})
    assert await client.call("isStreamPublisher", id, ADDRESS) is True
    if version == "5.1.0":
        last = await client.call("getStreamLast", {"streamId": id, "count": 2})
        assert [found["content"]["n"] for found in last] == [1, 2]
        assert {found["publisherId"] for found in last} == {""}
    else:  # the newest detects fields by itself, over the WebSocket
        found = await client.stream(id, "detectFields")
        assert {field["name"]: field["type"] for field in found["config"]["fields"]} == {
            "n": "number",
            "text": "string",
        }


async def permissions(client: ClientProcess, version: str) -> None:
    """Permissions are given and taken."""
    id = f"shared/{version}"
    await client.call("createStream", {"id": id, "name": id})
    given = await client.stream(id, "grantPermission", "stream_publish", OTHER)
    assert (given["user"], given["operation"]) == (OTHER, "stream_publish")
    assert (await client.stream(id, "hasPermission", "stream_publish", OTHER))["id"] == given["id"]
    assert OTHER in await client.call("getStreamPublishers", id)
    await client.stream(id, "revokePermission", given["id"])
    assert not await client.stream(id, "hasPermission", "stream_publish", OTHER)
    await client.stream(id, "grantPermission", "stream_subscribe", None)
    assert (await client.stream(id, "hasPermission", "stream_subscribe", None))["anonymous"] is True
    if version != "2.2.7":
        mine = await client.stream(id, "getMyPermissions")
        assert {entry["operation"] for entry in mine} >= {"stream_get", "stream_publish", "stream_share"}


async def only_the_newest(client: ClientProcess, _version: str) -> None:
    """What only client 5.1.0 can ask."""
    id = "newest/one"
    await client.call("createStream", {"id": id, "requireEncryptedData": True})
    assert await client.call("getStreamValidationInfo", id) == {
        "id": id,
        "partitions": 1,
        "requireSignedData": False,
        "requireEncryptedData": True,
    }
    assert await client.call("isStreamSubscriber", id, OTHER) is True
    assert await client.call("getStreamSubscribers", id) == []
    [node] = await client.stream(id, "getStorageNodes")
    await client.stream(id, "addToStorageNode", node["_address"])
    parts = await client.call("getStreamPartsByStorageNode", node["_address"])
    assert {"_streamId": id, "_streamPartition": 0} in parts
    assert "Non-public streams require data to be encrypted" in await client.fails("publishHttp", id, {"n": 1})


async def login(client: ClientProcess, _version: str) -> None:
    """Who one is; and who has left logs in again by itself."""
    assert (await client.call("getUserInfo"))["username"].lower() == ADDRESS
    await client.call("logoutEndpoint")
    assert (await client.call("getUserInfo"))["username"].lower() == ADDRESS


@pytest.mark.parametrize("version", ALL)
def test_every_rest_call_of_a_genuine_client_succeeds(server: Server, version: str) -> None:
    async def scenario() -> None:
        async with asked(server, version) as client:
            for part in (streams, data, permissions, *([only_the_newest] if version == "5.1.0" else []), login):
                await part(client, version)

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["2.2.7", "5.1.0"])
def test_an_api_key_is_a_login(tmp_path: Path, version: str) -> None:
    require_clients()
    key = KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add("machine", ("*:mine/*",))

    async def scenario(gateway: Server) -> None:
        async with asked(gateway, version, {"apiKey": key}) as client:
            assert (await client.call("getUserInfo"))["username"] == "machine"
            await client.call("publishHttp", "mine/a", {"n": 1})
            assert "403" in await client.fails("publishHttp", "theirs", {"n": 1})
            assert "403" in await client.fails("getStream", "theirs")

    with Server(tmp_path / "data") as gateway:
        asyncio.run(scenario(gateway))
        assert "Traceback" not in gateway.log
