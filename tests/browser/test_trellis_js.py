"""`trellis.js`, the client for web pages, as the gateway serves it: run by Node, and checked by TypeScript."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.access.authorization import KeyFile
from gateway.http.pages import FOLDER
from tests.npm import NodeClient, node_client, require_clients
from tests.ports import reserved_port
from tests.server import Server

STRICT = (
    *("--noEmit", "--allowJs", "--checkJs", "--strict", "--noUnusedLocals", "--target", "es2022", "--module", "es2022"),
    *("--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable", "--typeRoots", "none"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    with Server(tmp_path_factory.mktemp("data")) as server:
        yield server


@asynccontextmanager
async def page(server: Server, **options: Any) -> AsyncIterator[NodeClient]:
    """The client, of the module that *server* serves."""
    module = server.data.parent / "trellis.mjs"
    if not module.exists():
        module.write_bytes(httpx.get(f"http://{server.http}/console/trellis.js").raise_for_status().content)
    url = f"http://{server.http}/v1/ws"
    async with node_client("trellis.mjs", str(module), url, json.dumps(options)) as client:
        yield client


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


async def heard(client: NodeClient, kind: str) -> Any:
    """What the client hears next of this *kind*."""
    while (event := await client.next_event("heard"))["kind"] != kind:
        pass
    return event["body"]


def restarted(server: Server) -> Server:
    """The gateway again, where it was."""
    return Server(server.data, "--port", server.http.rpartition(":")[2])


def test_all_modules_of_the_console_are_typed() -> None:
    compiler = require_clients() / "node_modules/typescript/bin/tsc"
    command = ["node", str(compiler), *STRICT, *map(str, sorted(FOLDER.glob("*.js")))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


def test_the_client_reports_a_missing_websocket() -> None:
    script = f"""
        delete globalThis.WebSocket;
        const {{ Trellis }} = await import("file://{FOLDER / "trellis.js"}");
        try {{ new Trellis({{ url: "ws://127.0.0.1:1" }}) }} catch (error) {{ console.log(error.code, error.message) }}
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("no-websocket there is no WebSocket here; before Node 22")


def test_malformed_frames_end_the_connection_but_not_the_program() -> None:
    script = f"""
        const {{ Trellis }} = await import("file://{FOLDER / "trellis.js"}");
        const states = [];
        let socket;
        class Hostile {{
          constructor() {{ socket = this; }}
          close() {{}}
          say(data) {{ this.onmessage?.({{ data }}); }}
        }}
        const options = {{ url: "ws://127.0.0.1:1", WebSocket: Hostile, onstate: (state) => states.push(state) }};
        const error = '{{"type":"error"}}', presence = '{{"type":"presence"}}';
        for (const wrong of ["[".repeat(1e6), "no JSON", "null", "7", "[]", error, presence]) {{
          const trellis = new Trellis(options);
          socket.say('{{"type":"welcome","version":"1","number":7}}');
          socket.say(wrong);
          trellis.close();
        }}
        console.log(states.join(" "));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["open", "waiting", "closed"] * 7


def test_two_pages_exchange_messages(server: Server) -> None:
    async def scenario() -> None:
        async with page(server) as alice, page(server) as bob:
            await alice.subscribe(where="talk")
            await bob.subscribe(where={"pattern": "ta*"})
            await bob.subscribe(where="talk")
            number = (await heard(alice, "joined"))["number"]
            alice.do("publish", channel="talk", content={"text": "héllo \U0001f333"})
            receipt = (await alice.next_event("published"))["receipt"]
            both = [await heard(bob, "message"), await heard(bob, "message")]
            assert sorted(each.get("pattern", "") for each in both) == ["", "ta*"]
            assert {(each["id"], each["content"]["text"]) for each in both} == {(receipt["id"], "héllo \U0001f333")}
            alice.do("direct", channel="talk", peer=number, content="psst")
            assert (await heard(bob, "direct"))["content"] == "psst"
            alice.do("presence", channel="talk")
            assert number in [peer["number"] for peer in (await alice.next_event("peers"))["peers"]]
            alice.do("history", channel="talk", range={"newestFirst": True, "limit": 1})
            assert [each["id"] for each in (await alice.next_event("page"))["messages"]] == [receipt["id"]]
            alice.do("direct", channel="talk", peer=10**9, content="nobody")
            assert (await alice.next_event("refused"))["code"] == "unknown-peer"
            alice.do("publish", channel="talk", content="x" * (1 << 20))
            assert (await alice.next_event("refused"))["code"] == "content-too-long"
            bob.do("subscribe", where="talk")
            assert (await bob.next_event("refused"))["code"] == "subscribed"
            bob.do("unsubscribe", where="talk")
            assert (await heard(alice, "left"))["number"] == number

    run(scenario)


def test_no_message_is_lost_or_repeated_when_the_gateway_is_killed(tmp_path: Path) -> None:
    require_clients()
    contents = list(range(600))
    with Server(tmp_path / "data", "--port", str(reserved_port())) as server:

        async def scenario() -> None:
            async with page(server) as writer, page(server) as reader:
                await reader.subscribe(where="talk")
                await reader.subscribe(where={"pattern": "ta*"})
                writer.do("publish", channel="talk", contents=contents[:300])
                await writer.next_event("published")
                server.kill()
                writer.do("publish", channel="talk", contents=contents[300:])
                with restarted(server) as again, httpx.Client(base_url=f"http://{again.http}") as http:
                    http.post("/v1/channels/talk/messages", json="end").raise_for_status()
                    receipts = [(await writer.next_event("published"))["receipt"]["sequence"] for _ in contents[1:]]
                    found: dict[str, list[Any]] = {"channel": [], "pattern": []}
                    while any(len(each) <= len(contents) for each in found.values()):
                        message = await heard(reader, "message")
                        found["pattern" if "pattern" in message else "channel"].append(message)
                    assert len(set(receipts)) == len(contents) - 1
                    for messages in found.values():
                        sequences = [message["sequence"] for message in messages]
                        assert sequences == sorted(set(sequences))
                        assert [each["content"] for each in messages if each["content"] != "end"] == contents

        run(scenario)


def test_a_gateway_that_is_silent_is_left_and_found_again(server: Server) -> None:
    async def scenario() -> None:
        async with page(server, timeout=1.5) as client:
            await client.subscribe(where="still")
            server.process.send_signal(signal.SIGSTOP)
            try:
                while (await client.next_event("state"))["state"] != "waiting":
                    pass
                client.do("direct", channel="still", peer=1, content="late")
                assert (await client.next_event("refused"))["code"] == "timeout"
            finally:
                server.process.send_signal(signal.SIGCONT)
            while (await client.next_event("state"))["state"] != "open":
                pass
            client.do("publish", channel="still", content="again")
            assert (await heard(client, "message"))["content"] == "again"

    run(scenario)


def test_refusals_have_a_reason_and_are_not_retried(tmp_path: Path) -> None:
    require_clients()
    keys = KeyFile(tmp_path / "data/keys/api-keys.json")
    ada = keys.add("ada", ("subscribe:a", "publish:a"))
    with Server(tmp_path / "data") as server:

        async def scenario() -> None:
            async with page(server, key="wrong") as stranger:
                state = await stranger.next_event("state")
                assert (state["state"], state["code"]) == ("closed", "unknown-key")
                stranger.do("publish", channel="a", content=1)
                assert (await stranger.next_event("refused"))["code"] == "closed"
            async with page(server, key=ada) as client:
                client.do("subscribe", where="b")
                assert (await client.next_event("refused"))["code"] == "forbidden"
                await client.subscribe(where="a")
                keys.remove("ada")
                assert await heard(client, "ended") == "unknown-key"
                assert (await client.next_event("state"))["code"] == "unknown-key"

        run(scenario)
