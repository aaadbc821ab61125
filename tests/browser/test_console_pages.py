"""Each page of the console in a real browser: wide and narrow, light and dark, and nothing for axe-core to find."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import expect

from gateway.demo_clients import RelayClient
from gateway.http.schemas import EXAMPLES
from tests.browser.conftest import Visitors, inspect
from tests.gateway.cluster.test_cluster import Cluster
from tests.server import Server

HOSTILE = "<img src=x onerror=alert(1)>"
CHANNEL = quote(HOSTILE, safe="")
GRANTS = {"anonymous": ["*:*", "admin:*"]}


@pytest.fixture(scope="module")
def server(visitors: Visitors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    del visitors  # without a browser no gateway is started
    warehouse = tmp_path_factory.mktemp("warehouse")
    env = {"TRELLIS_AUTH__GRANTS": json.dumps(GRANTS), "TRELLIS_WAREHOUSE": str(warehouse)}
    write_report(warehouse)
    with (
        Server(tmp_path_factory.mktemp("console"), env=env) as server,
        httpx.Client(base_url=f"http://{server.http}", timeout=10) as http,
    ):
        http.put(f"/v1/channels/{CHANNEL}/trace").raise_for_status()
        for content in (HOSTILE, {"text": HOSTILE}, {HOSTILE: [HOSTILE]}):
            http.post(f"/v1/channels/{CHANNEL}/messages", json=content).raise_for_status()
        http.post("/v1/keys", json={"name": HOSTILE}).raise_for_status()
        http.get("/v1/channels/none/messages/none")
        yield server


def write_report(warehouse: Path) -> None:
    """Write what the pipeline would write: a commit of a table, and a report with the name of a stranger's channel."""
    log = warehouse / "gold" / "channel_minute" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {"trellis": {"batch": 0, "rows": 7}}}))
    found = EXAMPLES["Report"] | {"channels": [{"channel": HOSTILE, "messages": 1234, "bytes": 17000}]}
    found["verdicts"] = [{"check": "eth", "verdict": "bad", "count": 3}, *found["verdicts"]]
    found["gaps"] = [{"name": "open", "count": 2}]
    (warehouse / "report.json").write_text(json.dumps(found))


def test_the_page_of_a_cluster_names_members_and_servers(visitors: Visitors, tmp_path: Path) -> None:
    cluster, config = Cluster(tmp_path), tmp_path / "two.toml"
    links = {"TRELLIS_TOPIC_RELAY__PEERS": '[{"url": "ws://127.0.0.1:9/relay", "channels": ["*"]}]'}
    try:
        one = cluster.start("one", env=links)
        config.write_text("")
        shutil.copytree(tmp_path / "one" / "keys", tmp_path / "two" / "keys")
        env = cluster.environment("two") | links
        two = cluster.gateways["two"] = Server(tmp_path / "two", "--config", str(config), env=env)
        config.write_text("[limits]\nsubscriptions = 9")
        os.kill(two.pid, signal.SIGHUP)

        async def scenario() -> None:
            async with visitors.visit(f"http://{one.http}/console/#/cluster") as shown:
                main = shown.locator("main")
                await expect(main).to_contain_text("Gateway one takes part in the cluster main.")
                members = shown.get_by_role("group", name="Gateways").locator("tbody tr")
                await expect(members.nth(0)).to_contain_text(re.compile("one.*nothing"))
                await expect(members.nth(1)).to_contain_text(re.compile("two.*limits.subscriptions"))
                links = shown.get_by_role("group", name="Links").locator("tbody tr")
                await expect(links).to_have_text("topic_relay ws://127.0.0.1:9/relayone")
                await expect(main).to_contain_text(f"connected to 127.0.0.1:{cluster.nats.port}")
                await inspect(shown, "cluster")

        visitors.run(scenario)
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("name", "page", "shows"),
    [
        ("overview", "", "Who hears whom"),
        ("channels", "channels", HOSTILE),
        ("conversation", f"channels/{CHANNEL}", HOSTILE),
        ("peers", "peers", HOSTILE),
        ("peer", "peers/{peer}", "Names on each protocol"),
        ("tracing", f"trace/{CHANNEL}", "Traced messages"),
        ("trace", f"trace/{CHANNEL}/{{message}}", "To topic relay"),
        ("cluster-alone", "cluster", "runs alone"),
        ("limits", "limits", "404"),
        ("keys", "keys", HOSTILE),
        ("pipeline", "pipeline", f"{HOSTILE}1,234"),
    ],
)
def test_a_page_is_shown_without_a_fault_and_runs_nothing(
    visitors: Visitors, server: Server, name: str, page: str, shows: str
) -> None:
    async def scenario() -> None:
        async with RelayClient(server.http) as relay:
            await relay.subscribe(HOSTILE)
            http = httpx.Client(base_url=f"http://{server.http}/v1/channels/{CHANNEL}", timeout=10)
            with http:
                said = http.post("/messages", json={"content": "traced"}).json()["id"]
                peer = http.get("/peers").json()["peers"][0]["number"]
            where = page.format(message=said, peer=peer)
            async with visitors.visit(f"http://{server.http}/console/#/{where}") as shown:
                await expect(shown.locator("main")).to_contain_text(shows)
                await inspect(shown, name)
                images = await shown.eval_on_selector_all("img", "all => all.map(each => each.getAttribute('src'))")
                assert images == ["trellis.svg"]

    visitors.run(scenario)


def test_a_channel_is_found_among_hundreds(visitors: Visitors, tmp_path: Path) -> None:
    names = json.dumps([f"bulk-{number}" for number in range(450)])
    with Server(tmp_path, env={"TRELLIS_CHANNELS__NAMES": names}) as server:

        async def scenario() -> None:
            async with (
                RelayClient(server.http) as relay,
                visitors.visit(f"http://{server.http}/console/#/peers") as page,
            ):
                await relay.subscribe("the last")
                await expect(page.locator("tbody")).to_contain_text("the last")
                await page.goto(f"http://{server.http}/console/#/channels")
                rows = page.locator("tbody tr")
                await expect(rows).to_have_count(200)
                await page.get_by_role("button", name="Show more").click()
                await expect(rows).to_have_count(400)
                await page.get_by_label("Find").fill("THE L")
                await expect(rows).to_have_count(1)
                await expect(rows).to_contain_text("the last1")
                await page.get_by_label("Find").fill("nowhere")
                await expect(rows).to_have_text("No channel that you may see has this in its name.")

        visitors.run(scenario)


def test_a_page_opened_without_an_answer_loads_once_the_gateway_answers(visitors: Visitors, server: Server) -> None:
    finished: list[str] = []

    async def scenario() -> None:
        async with visitors.visit(f"http://{server.http}/console/", "ERR_", "404") as page:
            await page.clock.install()
            page.on("requestfinished", lambda request: finished.append(request.url))
            await page.reload()
            while not any(url.endswith("/peers.js") for url in finished):
                await asyncio.sleep(0.02)
            await page.context.set_offline(True)
            await page.evaluate("location.hash = '#/peers/4711'")
            notice = page.locator("main .notice")
            await expect(notice).to_have_text("The gateway does not answer.")
            await expect(page.locator("h1")).to_have_text("Peers")
            await page.context.set_offline(False)
            await page.clock.run_for(6_000)
            await expect(notice).to_contain_text("There is no peer 4711")
            await page.evaluate("location.hash = '#/channels/..'")
            await expect(notice).to_contain_text("A web page cannot ask for a channel called ..")

    visitors.run(scenario)
