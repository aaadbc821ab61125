"""Event streams over real HTTP, run by the fast shell once they have caught up, or left to ASGI."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio
import httpx
import pytest

from gateway.access.authorization import KeyFile
from gateway.http import events
from gateway.shells import uvicorn_http
from tests.gateway.http.sent_events import Event, ids, parse

PATIENCE = 60.0


@pytest.fixture(params=["detached", "asgi"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asgi":
        monkeypatch.setattr(uvicorn_http, "DETACH_EXTENSION", "of another server")


@asynccontextmanager
async def listening(url: str, after: int | None = None, **options: str) -> AsyncIterator[AsyncIterator[Event]]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("GET", f"{url}/v1/channels/lobby/events", headers=headers | options) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield stream(response)


async def stream(response: httpx.Response) -> AsyncIterator[Event]:
    lines: list[str] = []
    async for line in response.aiter_lines():
        lines.append(line)
        if not line:
            for event in parse("\n".join([*lines, ""]).encode()):
                yield event
            lines = []


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not true():
            await anyio.sleep(0.01)


async def publish(client: httpx.AsyncClient, url: str, content: str) -> dict[str, Any]:
    response = await client.post(f"{url}/v1/channels/lobby/messages", content=content)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.anyio
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
async def test_publish_events_and_history_agree_on_both_loops(make_process: Callable[..., Any], loop: str) -> None:
    url = make_process(loop=loop).url
    async with httpx.AsyncClient(timeout=PATIENCE) as client, listening(url) as live:
        assert (await anext(live)).name == "welcome"
        one = await publish(client, url, '{"text": "one", "n": 1e400}')
        heard = await anext(live)
        assert (heard.id, heard.data["id"]) == (one["sequence"], one["id"])
        lines = await client.post(
            f"{url}/v1/channels/lobby/messages",
            content=b'"two"\n"three"\n',
            headers={"Content-Type": "application/x-ndjson"},
        )
        results = [json.loads(line) for line in lines.text.splitlines()]
        assert [(await anext(live)).id for _ in results] == [result["sequence"] for result in results]
        history = (await client.get(f"{url}/v1/channels/lobby/messages")).json()["messages"]
        assert [message["id"] for message in history] == [one["id"], *(result["id"] for result in results)]
        async with listening(url, after=one["sequence"]) as resumed:
            again = [await anext(resumed) for _ in range(3)]
            assert ids(again) == [result["sequence"] for result in results]


@pytest.mark.slow
@pytest.mark.anyio
async def test_resuming_over_and_over_while_others_publish(local: Any) -> None:
    accepted: list[int] = []
    seen: list[int] = []

    async def talk() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            for n in range(100):
                taken = await publish(client, local.url, str(n))
                accepted.append(taken["sequence"])

    async def listen() -> None:
        content = None
        while content != "the end":
            async with listening(local.url, after=seen[-1] if seen else 0) as heard:
                for _ in range(8):
                    event = await anext(heard)
                    if event.id is not None and event.name == "message":
                        seen.append(event.id)
                        content = event.data["content"]
                    if content == "the end":
                        break

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            async with anyio.create_task_group() as talkers:
                for _ in range(4):
                    talkers.start_soon(talk)
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                accepted.append((await publish(client, local.url, '"the end"'))["sequence"])
    assert len(accepted) == 401
    assert seen == sorted(accepted)
    await until(lambda: local.gateway.bus.session_count == 0)


@pytest.mark.usefixtures("either")
@pytest.mark.anyio
async def test_a_client_that_hangs_up_has_left(local: Any) -> None:
    async with listening(local.url) as first:
        await anext(first)
        async with listening(local.url) as second:
            await anext(second)
            assert (await anext(first)).name == "joined"
            async with httpx.AsyncClient() as client:
                peers = (await client.get(f"{local.url}/v1/channels/lobby/peers")).json()["peers"]
            assert len(peers) == 2
        assert await anext(first) == ("left", None, peers[1] | {"channel": "lobby"})
    await until(lambda: local.gateway.bus.session_count == 0)


@pytest.mark.usefixtures("either")
def test_a_client_that_does_not_read_gets_the_reason_at_the_end(local: Any) -> None:
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(PATIENCE)
        slow.connect(("127.0.0.1", local.port))
        slow.sendall(b"GET /v1/channels/lobby/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        body = b'"' + b"x" * 500_000 + b'"\n'
        with httpx.Client(timeout=PATIENCE) as client:
            deadline = time.monotonic() + PATIENCE
            while not local.gateway.metrics.counts["overflows"]["rest",]:
                assert time.monotonic() < deadline
                client.post(
                    f"{local.url}/v1/channels/lobby/messages",
                    content=body * 4,
                    headers={"Content-Type": "application/x-ndjson"},
                )
        end = b""
        while b"too slow" not in end:
            data = slow.recv(1 << 20)
            assert data, "closed without a word"
            end = end[-100:] + data
    assert b"\n: too slow" in end


@pytest.mark.usefixtures("either")
def test_an_idle_stream_is_kept_open_by_comments(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions are looked at once a second."""
    monkeypatch.setattr(events, "PING_SECONDS", 0.1)
    with httpx.Client(timeout=PATIENCE) as client, client.stream("GET", f"{local.url}/v1/channels/lobby/events") as got:
        text = ""
        for part in got.iter_text():
            text += part
            if ": ping\n\n" in text:
                break
    assert "event: welcome" in text


@pytest.mark.usefixtures("either")
def test_a_client_that_never_reads_is_disconnected(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STALLED_SECONDS", 0.1)
    with socket.socket() as dead, httpx.Client(timeout=PATIENCE) as client:
        dead.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        dead.connect(("127.0.0.1", local.port))
        dead.sendall(b"GET /v1/channels/lobby/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + PATIENCE
        while local.gateway.bus.session_count or not local.gateway.metrics.counts["connections"]["rest",]:
            assert time.monotonic() < deadline
            client.post(f"{local.url}/v1/channels/lobby/messages", content=b'"' + b"x" * 500_000 + b'"')


def test_a_stream_that_has_caught_up_costs_no_task(local: Any) -> None:
    count = local.gateway.metrics.gauges["tasks"]
    with contextlib.ExitStack() as stack:

        def tasks() -> int:
            found: SimpleQueue[int] = SimpleQueue()
            local.call(lambda: found.put(count()))
            return found.get(timeout=PATIENCE)

        before = tasks()
        for _ in range(5):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", local.port), PATIENCE))
            peer.sendall(b"GET /v1/channels/lobby/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.recv(1 << 12).startswith(b"HTTP/1.1 200")
        deadline = time.monotonic() + PATIENCE
        while tasks() > before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert local.gateway.bus.session_count == 5


def read_until(peer: socket.socket, text: bytes) -> bytes:
    """What comes up to and with *text*."""
    said = b""
    while text not in said:
        data = peer.recv(1 << 16)
        assert data, said
        said += data
    return said


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_input_during_an_event_stream_is_ignored(local: Any, version: bytes) -> None:
    """A body, and requests behind the one for the stream: none is answered, and the stream goes on."""
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as peer:
        head = b"GET /v1/channels/lobby/events HTTP/%b\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" % version
        peer.sendall(head + b"x" * 100_000 + b"GET / HTTP/1.1\r\n\r\n" * 100)
        said = read_until(peer, b"event: welcome")
        httpx.post(f"{local.url}/v1/channels/lobby/messages", content='"hi"').raise_for_status()
        said += read_until(peer, b"event: message")
    assert said.count(b"HTTP/1.1 ") == 1
    assert local.gateway.metrics.counts["connections"]["rest",] == 1


@pytest.mark.anyio
async def test_event_streams_end_with_a_comment_when_the_gateway_stops(make_process: Callable[..., Any]) -> None:
    process = make_process()
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("GET", f"{process.url}/v1/channels/lobby/events") as response,
    ):
        text = response.aiter_text()
        assert "welcome" in await anext(text)
        await anyio.to_thread.run_sync(process.stop)
        assert ": the gateway is stopping" in "".join([part async for part in text])


@pytest.mark.usefixtures("either")
@pytest.mark.anyio
async def test_a_key_is_one_peer_however_many_streams_it_has(make_local: Callable[..., Any], tmp_path: Path) -> None:
    secret = KeyFile(tmp_path / "data/keys/api-keys.json").add("ada")
    local = make_local()
    bearer = {"Authorization": f"Bearer {secret}"}
    async with listening(local.url, None, **bearer) as first, listening(local.url, None, **bearer) as second:
        one, two = await anext(first), await anext(second)
        assert one.data["number"] == two.data["number"]
        assert (one.data["identity"], one.data["name"]) == ("ada", "ada")
        url = f"{local.url}/v1/channels/lobby/peers/{one.data['number']}/messages"
        async with httpx.AsyncClient() as client:
            answer = await client.post(url, content='"psst"', headers=bearer)
            assert (answer.status_code, answer.json()["delivered"]) == (202, 2)
            async with client.stream("GET", f"{local.url}/v1/channels/lobby/events?key={secret}") as response:
                assert response.status_code == 200
        assert (await anext(first)).data["content"] == (await anext(second)).data["content"] == "psst"


@pytest.mark.anyio
@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_streams_are_connections_and_as_limited(make_local: Callable[..., Any], limit: str) -> None:
    local = make_local(limits={"rates": "off", limit: 1})
    async with listening(local.url) as first:
        await anext(first)
        async with httpx.AsyncClient() as client:
            refused = await client.get(f"{local.url}/v1/channels/lobby/events")
    assert refused.status_code == 503
    assert f"limits.{limit}" in refused.json()["detail"]
