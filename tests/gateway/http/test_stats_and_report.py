"""REST returns the message statistics, and the report of the pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.demo_clients import RelayClient, RestClient
from gateway.http.schemas import EXAMPLES
from tests.gateway.http.rest_reader import Rest, run
from tests.server import Server

# What is counted


def flows_of(stats: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """How many messages each protocol was delivered, and not, from each other one."""
    return {(flow["from"], flow["to"]): (flow["delivered"], flow["undelivered"]) for flow in stats["flows"]}


def write_tables(warehouse: Path) -> None:
    """A table of four batches that was optimized then, and one whose log cannot be read."""
    table = warehouse / "bronze" / "messages"
    broken = warehouse / "gold" / "broken" / "_delta_log"
    for folder in (table / "_delta_log", broken):
        folder.mkdir(parents=True)
    commits = [{"operation": "WRITE", "trellis": {"batch": n, "rows": 2 * n + 1}} for n in range(4)]
    for n, commit in enumerate([*commits, {"operation": "OPTIMIZE"}]):
        text = json.dumps({"add": {"path": "a"}}) + "\n" + json.dumps({"commitInfo": commit})
        (table / "_delta_log" / f"{n:020d}.json").write_text(text)
    (table / "_delta_log" / f"{3:020d}.checkpoint.parquet").touch()
    (broken / f"{0:020d}.json").write_text("{")


def test_messages_are_counted_by_protocol_channel_and_direction(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    table = warehouse / "bronze" / "messages"
    write_tables(warehouse)

    async def scenario() -> None:
        async with RelayClient(server.http) as relay, RestClient(server.http) as program:
            await relay.subscribe("lobby")
            await program.subscribe("lobby")
            await relay.publish("lobby", {"n": 1})
            await program.publish("lobby", {"n": 2})
            await program.publish("elsewhere", {"n": 2})
            await program.publish("lobby", "x" * 70_000)
            for _ in range(3):
                await program.next()
            await relay.next()
            stats = (await program.client.get("/v1/stats")).json()
        assert stats["protocols"]["topic_relay"]["messages"] == 1
        assert stats["protocols"]["rest"]["messages"] == 3
        assert stats["protocols"]["topic_relay"]["undeliverable"] == 1
        assert stats["channels"] == [
            {"name": "lobby", "messages": 3, "deliveries": 4, "members": 2},
            {"name": "elsewhere", "messages": 1, "deliveries": 0, "members": 0},
        ]
        flows = flows_of(stats)
        assert flows["topic_relay", "rest"] == (1, 0)
        assert flows["rest", "topic_relay"] == (1, 1)
        assert flows["rest", "rest"] == (2, 0)
        written = (table / "_delta_log" / f"{3:020d}.json").stat().st_mtime_ns // 10**6
        assert stats["pipeline"] == {
            "warehouse": str(warehouse),
            "tables": [{"table": "bronze/messages", "batch": 3, "rows": 7, "written": written}],
            "report": None,
        }
        assert stats["connections"] == 2

    with Server(tmp_path / "data", env={"TRELLIS_WAREHOUSE": str(warehouse)}) as server:
        run(scenario)
    with Server(tmp_path / "data", env={"TRELLIS_WAREHOUSE": str(tmp_path / "nothing")}) as server:
        assert Rest(server).get("/v1/stats")["pipeline"] is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "has not written"),
        ("{", "is not a report"),
        ("[" * 100_000, "is not a report"),
        (json.dumps(EXAMPLES["Report"] | {"records": "many"}), "`$.records`"),
        (" " * (1 << 20) + "{}", "bytes"),
    ],
)
def test_a_report_that_cannot_be_read_is_a_problem(make_local: Any, tmp_path: Path, text: str | None, why: str) -> None:
    local = make_local(warehouse=tmp_path)
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    answer = httpx.get(f"{local.url}/v1/report")
    assert (answer.status_code, answer.json()["code"]) == (404, "no-report")
    assert why in answer.json()["detail"]
    assert httpx.get(f"{local.url}/readyz").status_code == 200


def test_a_browser_gets_the_page_of_the_report(make_local: Any, tmp_path: Path) -> None:
    """Whatever is in the file, nothing in it is executed."""
    local, browser = make_local(warehouse=tmp_path), {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    assert httpx.get(f"{local.url}/v1/report", headers=browser).json()["code"] == "no-report"
    (tmp_path / "report.html").write_text("<!doctype html><title>grün</title>")
    answer = httpx.get(f"{local.url}/v1/report", headers=browser)
    assert (answer.status_code, answer.text) == (200, "<!doctype html><title>grün</title>")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Vary"] == "Accept"
    with (tmp_path / "report.html").open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert "bytes" in httpx.get(f"{local.url}/v1/report", headers=browser).json()["detail"]


def test_the_report_equals_the_file_of_the_pipeline(make_local: Any, tmp_path: Path) -> None:
    """The statistics tell when that was, so that a page need not ask for it again and again."""
    local = make_local(warehouse=tmp_path)
    (tmp_path / "report.json").write_text(json.dumps(EXAMPLES["Report"] | {"later": "members are left out"}))
    assert httpx.get(f"{local.url}/v1/report").json() == EXAMPLES["Report"]
    assert httpx.get(f"{local.url}/v1/stats").json()["pipeline"] is None, "without tables"
    log = tmp_path / "gold" / "minutes" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {"trellis": {"batch": 0, "rows": 1}}}))
    written = (tmp_path / "report.json").stat().st_mtime_ns // 10**6
    assert httpx.get(f"{local.url}/v1/stats").json()["pipeline"]["report"] == written
