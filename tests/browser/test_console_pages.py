"""Each page of the console in a real browser: wide and narrow, light and dark, and nothing for axe-core to find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import expect

from gateway.clients import RelayClient
from gateway.http.schemas import EXAMPLES
from tests.browser.conftest import Visitors, inspect
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
