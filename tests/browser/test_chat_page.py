"""The chat page in a real browser: with a genuine Arbor client, across a restart, and with hostile texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from playwright.async_api import expect

from tests.arbor import arbor, community, require_arbor
from tests.browser.conftest import Visitors, inspect
from tests.pages import ROOT, blocks
from tests.ports import reserved_port
from tests.server import Server

PAGE = ROOT / "docs/how-to/chat-in-a-web-page.md"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def server(visitors: Visitors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    del visitors  # without a browser no gateway is started
    with Server(tmp_path_factory.mktemp("chat")) as server:
        yield server


def test_it_chats_with_an_arbor_client(visitors: Visitors, server: Server) -> None:
    program = require_arbor()

    async def scenario() -> None:
        garden = await community(server, "garden")
        url = f"http://{server.http}/console/chat.html#garden"
        async with arbor(program, "-name", "ada", server.sprout) as ada, visitors.visit(url) as page:
            await ada.do("bootstrap")
            await ada.do(f"subscribe {garden}")
            await expect(page.locator("#state")).to_have_text("open")
            await page.get_by_label("Message", exact=True).fill("hello from a web page")
            await page.keyboard.press("Enter")
            said = await ada.next("announced", type="reply", content="hello from a web page")
            await ada.next("stored", id=said["id"])
            await ada.do(f"say {said['id']} hello from Arbor")
            await expect(page.locator("#messages p")).to_have_text(
                ["anonymous (rest) hello from a web page", "ada (sprout) hello from Arbor"]
            )
            await inspect(page, "chat")

    visitors.run(scenario)


def test_hostile_texts_stay_text_and_a_restart_repeats_nothing(visitors: Visitors, tmp_path: Path) -> None:
    port = str(reserved_port())
    with Server(tmp_path, "--port", port) as server:

        async def scenario() -> None:
            async with visitors.visit(f"http://{server.http}/console/chat.html#talk", "ERR_", "WebSocket") as page:
                lines = page.locator("#messages p")
                say(server, HOSTILE)
                await expect(lines).to_have_text([f"anonymous (rest) {HOSTILE}"])
                server.kill()
                await expect(page.locator("#state")).to_have_text("waiting")
                with Server(tmp_path, "--port", port) as again:
                    say(again, {"text": "meanwhile"})
                    await expect(page.locator("#state")).to_have_text("open")
                    say(again, [1])
                    await expect(lines).to_have_text(
                        [f"anonymous (rest) {each}" for each in (HOSTILE, "meanwhile", "[1]")]
                    )
                assert await page.locator("#messages img").count() == 0

        visitors.run(scenario)


def test_the_address_names_the_channel_also_while_the_page_is_open(visitors: Visitors, server: Server) -> None:
    async def scenario() -> None:
        async with visitors.visit(f"http://{server.http}/console/chat.html#100%") as page:
            channel = page.get_by_label("Channel")
            await expect(channel).to_have_value("100%")
            await expect(page.locator("#state")).to_have_text("open")
            await page.evaluate("location.hash = '#t%C3%A9l%C3%A9'")
            await expect(channel).to_have_value("télé")
            await expect(page.locator("#state")).to_have_text("open")

    visitors.run(scenario)


def test_the_documented_page_receives_messages_from_another_origin(visitors: Visitors, server: Server) -> None:
    (shown,) = (block.code for block in blocks(PAGE) if block.language == "html")
    shown = shown.replace("https://gateway.example", f"http://{server.http}")

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(shown.encode())

        def log_message(self, *_: object) -> None:
            pass

    async def scenario() -> None:
        async with visitors.visit(f"http://127.0.0.1:{site.server_port}/") as page:
            listening = f"http://{server.http}/v1/channels/lobby/peers"
            while not httpx.get(listening).json()["peers"]:
                await asyncio.sleep(0.05)
            for content in ({"content": "in words"}, "a text", None, {"celsius": 21.5}, {"content": HOSTILE}):
                httpx.post(
                    f"http://{server.http}/v1/channels/lobby/messages", content=json.dumps(content)
                ).raise_for_status()
            said = ("in words", "a text", "null", '{"celsius":21.5}', HOSTILE)
            await expect(page.locator("li")).to_have_text([f"rest: {each}" for each in said])

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        Thread(target=site.serve_forever, daemon=True).start()
        try:
            visitors.run(scenario)
        finally:
            site.shutdown()


def say(server: Server, content: object) -> None:
    httpx.post(f"http://{server.http}/v1/channels/talk/messages", json=content).raise_for_status()
