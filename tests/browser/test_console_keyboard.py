"""The console used with the keyboard alone, in a real browser: a key, a conversation, a trace, keys, a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Dialog, Page, expect

from gateway.access.authorization import KeyFile
from gateway.demo_clients import RelayClient
from tests.browser.conftest import Visitors, shoot, violations
from tests.ports import reserved_port
from tests.server import Server

MAX_TABS = 80
# What the element with the focus is called: by its label, or by its text.
FOCUSED = "(e => e.ariaLabel ?? e.labels?.[0]?.textContent ?? e.textContent.trim())(document.activeElement)"


@pytest.fixture
def keys(visitors: Visitors, tmp_path: Path) -> KeyFile:
    del visitors  # without a browser no key is made
    return KeyFile(tmp_path / "keys/api-keys.json")


@pytest.fixture
def root(keys: KeyFile) -> str:
    """A key that may do everything."""
    return keys.add("root", ("*:*", "admin:*"))


@pytest.fixture
def listener(keys: KeyFile) -> str:
    """A key that may only listen."""
    return keys.add("listener", ("subscribe:*",))


@pytest.fixture
def server(root: str, listener: str, tmp_path: Path) -> Iterator[Server]:
    del root, listener  # they are there before the gateway starts, which looks for new keys once a second
    grants = json.dumps({"anonymous": ["subscribe:garden", "publish:garden"]})
    with Server(tmp_path, env={"TRELLIS_AUTH__GRANTS": grants}) as server:
        yield server


async def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Move the focus to what is called *name*."""
    passed = []
    for _ in range(MAX_TABS):
        await page.keyboard.press(key)
        if (focused := await page.evaluate(FOCUSED)) == name:
            return
        passed.append(focused)
    raise AssertionError(f"no way to {name!r}: {passed}")


async def go(page: Page, name: str) -> None:
    """Follow a link or press a button."""
    await tab_to(page, name)
    await page.keyboard.press("Enter")


async def enter(page: Page, *texts: str) -> None:
    """Write into the field that has the focus, and the next ones; then send."""
    for at, text in enumerate(texts):
        if at:
            await page.keyboard.press("Tab")
        await page.keyboard.insert_text(text)
    await page.keyboard.press("Enter")


async def give_key(page: Page, key: str) -> None:
    """Answer the dialog that asks for a key."""
    await expect(page.locator("dialog")).to_be_visible()
    assert await violations(page) == []
    await shoot(page, "dialog-1280-light")
    await enter(page, key)
    await expect(page.locator("dialog")).to_have_count(0)


def test_a_conversation_with_one_s_keyboard(visitors: Visitors, server: Server, root: str) -> None:
    async def scenario() -> None:
        console = f"http://{server.http}/console/"
        async with RelayClient(server.http) as relay, visitors.visit(console, "401", "404 (Not Found)") as page:
            await relay.subscribe("garden")
            await give_key(page, root)
            await go(page, "Channels")
            await tab_to(page, "New channel")
            await enter(page, "garden")
            await expect(page.locator("h1")).to_have_text("garden")
            await expect(page.locator(".lead")).to_have_text("Live. You are root.")
            await tab_to(page, "Message")
            await enter(page, "hello")
            assert (await relay.next()).content == {"content": "hello"}
            await expect(page.locator(".content")).to_have_text(["hello"])
            await tab_to(page, "Reply to root", "Shift+Tab")
            await page.keyboard.press("Enter")
            await enter(page, "to myself")
            await expect(page.locator(".content")).to_have_text(["hello", "to myself"])
            await expect(page.locator(".quote").last).to_have_text("in reply to root: hello")
            answer = (await relay.next()).content
            number = httpx.get(f"{console}../v1/channels/garden/peers", headers=bearer(root)).json()["peers"][0][
                "number"
            ]
            assert answer["content"] == "to myself"
            await go(page, f"Write to peer {number} alone")
            await enter(page, "psst")
            heard = await relay.next()
            assert (heard.content, heard.direct) == ({"content": "psst"}, True)
            await shoot(page, "talk-1280-light")
            await follow_a_trace(page, relay)

    visitors.run(scenario)


async def follow_a_trace(page: Page, relay: RelayClient) -> None:
    await go(page, "Trace")
    await tab_to(page, "Channel")
    await enter(page, "garden")
    await expect(page.locator("[role=status]", has_text="What is published now is traced.")).to_be_visible()
    await relay.publish("garden", {"content": "traced"})
    await expect(page.locator("tbody a")).to_have_count(2)  # its time, and its sender
    time = await page.locator("tbody a").first.inner_text()
    await go(page, time)
    await expect(page.locator("main")).to_contain_text("On disk")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_are_added_rotated_and_revoked(visitors: Visitors, server: Server, root: str) -> None:
    def names() -> dict[str, Any]:
        listed = httpx.get(f"http://{server.http}/v1/keys", headers=bearer(root)).json()["keys"]
        return {key["name"]: key for key in listed if key["valid"]}

    async def accept(dialog: Dialog) -> None:
        assert dialog.message == "Revoke the key ada? Its connections end at once."
        await dialog.accept()

    async def scenario() -> None:
        async with visitors.visit(f"http://{server.http}/console/#/keys", "401", "403") as page:
            page.on("dialog", accept)
            await give_key(page, root)
            await tab_to(page, "Name")
            await enter(page, "ada")
            await expect(page.locator(".secret")).to_contain_text("The key of ada.")
            first = await page.locator(".secret code").inner_text()
            assert httpx.get(f"http://{server.http}/v1/channels", headers=bearer(first)).status_code == 200
            await go(page, "Rotate ada")
            await expect(page.locator(".secret code")).not_to_have_text(first)
            await shoot(page, "secret-1280-light")
            assert await violations(page) == []
            second = await page.locator(".secret code").inner_text()
            await tab_to(page, "Revoke ada")
            await page.keyboard.press("Enter")
            await expect(page.locator("tbody tr")).to_have_count(2)
            assert names().keys() == {"root", "listener"}
            assert httpx.get(f"http://{server.http}/v1/channels", headers=bearer(second)).status_code == 401

    visitors.run(scenario)


def test_the_console_names_the_right_that_a_key_lacks(visitors: Visitors, server: Server, listener: str) -> None:
    async def scenario() -> None:
        async with visitors.visit(f"http://{server.http}/console/#/keys", "401", "403") as page:
            await give_key(page, listener)
            await expect(page.locator("main .notice")).to_have_text(
                "Not allowed to administer the gateway; use a key with the right `admin:*`."
            )

    visitors.run(scenario)


def test_messages_of_an_interruption_appear_once(visitors: Visitors, tmp_path: Path) -> None:
    port = str(reserved_port())
    with Server(tmp_path, "--port", port) as server:

        def say(text: str) -> None:
            httpx.post(f"http://{server.http}/v1/channels/talk/messages", json=text).raise_for_status()

        async def scenario() -> None:
            say("before")
            url = f"http://{server.http}/console/#/channels/talk"
            async with visitors.visit(url, "ERR_") as page:
                await expect(page.locator(".lead")).to_contain_text("Live.")
                server.kill()
                await expect(page.locator(".lead")).to_contain_text("The connection was interrupted")
                with Server(tmp_path, "--port", port):
                    say("meanwhile")
                    await expect(page.locator(".lead")).to_contain_text("Live.")
                    say("after")
                    await expect(page.locator(".content")).to_have_text(["before", "meanwhile", "after"])

        visitors.run(scenario)


def test_an_answer_to_a_request_without_the_key_asks_for_no_other(
    visitors: Visitors, server: Server, listener: str
) -> None:
    async def scenario() -> None:
        async with visitors.visit(f"http://{server.http}/console/chat.html", "401", "403", "WebSocket") as page:
            await page.evaluate(
                """async (secret) => {
                    const { request } = await import("/console/api.js");
                    const { key } = await import("/console/key.js");
                    const asked = request("v1/keys").catch(() => null);
                    key.keep(secret); // before the answer
                    await asked;
                }""",
                listener,
            )
            await expect(page.locator("dialog")).to_have_count(0)

    visitors.run(scenario)
