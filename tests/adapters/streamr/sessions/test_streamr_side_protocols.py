"""The network layer and the tracker work on a real gateway, in both shells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.server import Server

pytestmark = pytest.mark.anyio
WAIT = 20.0


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the clients' loop; the gateway has its own


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("data"), "--loop", request.param) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


async def told(socket: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.recv(), WAIT))


async def ask(socket: ClientConnection, frame: Any) -> Any:
    await socket.send(json.dumps(frame))
    return await told(socket)


async def test_nodes_of_both_forms_receive_messages_of_programs(server: Server) -> None:
    url = f"ws://{server.http}/network"
    async with connect(url) as one, connect(url) as two, httpx.AsyncClient(base_url=f"http://{server.http}") as rest:
        answer = await ask(one, ["4.4.3", 4, "one", [2, 9, "r", "side", 0, None]])
        assert answer[3] == [2, 2, "r", "side", 0]
        wrapped = {"serializedControlLayerPayload": '[2,9,"r","side",0,null]'}
        answer = await ask(two, {"version": "16.1.0", "code": 4, "payload": wrapped})
        assert json.loads(answer["payload"]["serializedControlLayerPayload"]) == [2, 2, "r", "side", 0]
        assert (await ask(one, ["4.4.3", 2, "one", "side"]))[4] == [url]
        await one.send(json.dumps(["4.4.3", 0, "one", "fine"]))
        assert (await rest.post("/v1/channels/side/messages", json={"n": 1})).status_code == 201
        first = (await told(one))[3]
        second = json.loads((await told(two))["payload"]["serializedControlLayerPayload"])
        assert first == second
        assert json.loads(first[3][7]) == {"n": 1}
        shown = (await rest.get("/v1/stats")).json()["reports"]["streamr"]["network"]
        assert [node["status"] for node in shown] == ["fine"]
        refused = await ask(one, ["4.4.3", 9, "one"])
        assert refused[3][1] == 7


async def test_many_messages_come_wrapped_and_whole(server: Server) -> None:
    async with (
        connect(f"ws://{server.http}/network") as node,
        httpx.AsyncClient(base_url=f"http://{server.http}") as rest,
    ):
        await ask(node, ["4.4.3", 4, "one", [2, 9, "r", "crowd", 0, None]])
        lines = b"".join(b'{"n":%d}\n' % number for number in range(300))
        headers = {"Content-Type": "application/x-ndjson"}
        assert (await rest.post("/v1/channels/crowd/messages", content=lines, headers=headers)).status_code == 200
        heard = [json.loads((await told(node))[3][3][7])["n"] for _ in range(300)]
        assert heard == list(range(300))


async def test_the_tracker_announces_nodes_to_each_other(server: Server) -> None:
    url = f"ws://{server.http}/tracker"
    async with connect(f"{url}?address=ws%3A%2F%2Fone") as one:
        async with connect(url, additional_headers={"streamr-peer-id": "two"}) as two:
            assert (await ask(one, [2, 1, "r1", {"streams": {"s::0": {}}}]))[:6] == [2, 2, "r1", "s", 0, []]
            assert (await ask(two, [1, 14, {"streams": ["s"]}]))[3:6] == ["s", 0, ["ws://one"]]
            assert (await told(one))[3:6] == ["s", 0, ["two"]]
            answer = await ask(two, [1, 16, "r", "s", 0])
            assert answer == [1, 17, "r", "s", 0, [f"ws://{server.http}/network"]]
        assert (await told(one))[3:6] == ["s", 0, []]
        assert (await ask(one, "nonsense"))[:2] == [2, 6]
