"""A gateway under traffic of all protocols and the pipeline beside it are both killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
import websockets

from gateway.client.errors import Unreachable
from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients import Client, RelayClient, RestClient, SproutClient, StreamrClient
from gateway.http.stats import pipeline_tables
from gateway.storage.archive import sealed_files
from pipeline.config import LogSource, Options
from pipeline.jobs import job
from pipeline.run import Run
from pipeline.schemas import CHANNEL_MINUTE, LATENCY_MINUTE, MESSAGES, REJECTS
from pipeline.sources.records import decode_row
from tests.pipeline.ingested import files, records
from tests.pipeline.test_processes import PATIENCE, seen, trellis
from tests.pipeline.test_report import BROWSER, read
from tests.server import Server

ROUNDS = max(1, int(os.environ.get("TRELLIS_SOAK", "0")) // 4)
PROTOCOLS = {"topic_relay", "sprout", "streamr", "rest"}
GONE = (OSError, TimeoutError, httpx.HTTPError, websockets.WebSocketException, asyncio.IncompleteReadError, Unreachable)
SMALL = {"TRELLIS_LOG__SEGMENT_BYTES": "30000"}  # so that the pipeline has something while the gateway runs


class LiveTraffic:
    """Peers of all protocols that talk until they are stopped or cut off; `kept` is what the gateway has accepted."""

    def __init__(self, author: ArborAuthor) -> None:
        self._author = author
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.kept: list[Any] = []
        self.said = 0

    @contextmanager
    def on(self, server: Server) -> Iterator[None]:
        """Talk meanwhile."""
        self._over.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._talk(server)), daemon=True)
        self._thread.start()
        yield
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _talk(self, server: Server) -> None:
        clients: list[Client] = [RelayClient(server.http), StreamrClient(server.http), RestClient(server.http)]
        clients.append(SproutClient(server.http, server.sprout, self._author))
        await asyncio.gather(*(self._say(client) for client in clients))

    async def _say(self, client: Client) -> None:
        with suppress(*GONE):
            async with client:
                await client.subscribe("lobby")
                while not self._over.is_set():
                    self.said += 1
                    content = {"n": self.said, "by": client.protocol}
                    await asyncio.wait_for(client.publish("lobby", content), 10)
                    if client.protocol in ("rest", "sprout"):
                        self.kept.append(content)
                    await asyncio.sleep(0.02)


def all_jobs(data: Path, warehouse: Path) -> subprocess.Popen[bytes]:
    options = ["--follow", "--interval", "0.2", "--master", "local[2]", "--heap", "512"]
    return trellis("all", "--source", f"log:{data}", "--warehouse", str(warehouse), *options)


def until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, "nothing happens"
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        time.sleep(0.05)


@pytest.mark.timeout(300 * (ROUNDS + 1))
def test_the_bronze_table_equals_the_log_after_kills(spark: Any, tmp_path: Path) -> None:
    dice = random.Random(int(os.environ.get("TRELLIS_SEED", "1")))
    data, warehouse = tmp_path / "data", tmp_path / "warehouse"
    table, traffic = warehouse / MESSAGES.name, LiveTraffic(ArborAuthor("a talker"))
    data.mkdir()  # the pipeline starts first
    for _ in range(ROUNDS):
        pipeline = all_jobs(data, warehouse)
        before = len(seen(table))
        for _ in range(2):  # two lives of the gateway for one of the pipeline
            server = Server(data, env=SMALL)
            with traffic.on(server):
                time.sleep(2 + dice.random())
                server.kill()
        with Server(data, env=SMALL) as server, traffic.on(server):
            until(lambda before=before: len(seen(table)) > before, pipeline)  # type: ignore[misc]
            time.sleep(dice.random() * 5)
            os.killpg(pipeline.pid, signal.SIGKILL)
            pipeline.communicate()
            found = seen(table)
            assert len(found) == len(set(found))
    run = Run(spark, Options(warehouse, LogSource(data / "log")), lambda _text: None)
    time.sleep(1)
    job("all")(run)
    told = [line for path in sealed_files(data / "log") for line in path.read_bytes().splitlines(keepends=True)]
    gateway = json.loads(told[0])["gateway"]
    rows = run.table(MESSAGES).frame(spark).collect()
    assert sorted(map(tuple, rows)) == sorted(decode_row(line, gateway) for line in told)
    assert sorted(seen(table)) == [*range(1, len(told) + 1)]
    assert records(run, REJECTS) == []
    contents = {row.content for row in rows if row.kind == "message" and row.channel == "lobby"}
    said = {json.dumps(json.loads(content), sort_keys=True) for content in contents}
    assert {json.dumps(content, sort_keys=True) for content in traffic.kept} <= said, "what was accepted is there"
    stats = pipeline_tables(warehouse)
    assert stats is not None
    shown = {table["table"]: table["rows"] for table in stats["tables"]}
    assert shown[MESSAGES.name] == len(told), "`GET /v1/stats` finds what the pipeline wrote"
    _check_tables(run, len(told))
    _check_latency(run, [json.loads(line) for line in told if b'"kind":"counts"' in line])


def _check_latency(run: Run, facts: list[Any]) -> None:
    """What the gateway itself measured stands in the table, added up by hand."""
    counted: Counter[tuple[str, str]] = Counter()
    slowest: Counter[tuple[str, str]] = Counter()
    for flow in (flow for fact in facts for flow in fact["flows"]):
        pair = flow["from"], flow["to"]
        counted[pair] += flow["delivered"]
        slowest[pair] = max(slowest[pair], *(bound for bound, _ in flow["latency"]), 0)
    table = files(run.table(LATENCY_MINUTE).path)
    query = f"SELECT from_protocol, to_protocol, sum(n), max(p99) FROM {table} GROUP BY ALL"
    found = {(origin, to): (n, p99) for origin, to, n, p99 in duckdb.execute(query).fetchall()}
    assert {pair: n for pair, (n, _) in found.items()} == dict(counted)
    assert {("rest", "streamr"), ("sprout", "topic_relay")} <= {pair for pair, n in counted.items() if n}
    assert all(p99 is None or 0 < p99 <= slowest[pair] / 1000 for pair, (_, p99) in found.items())
    assert any(p99 for _, p99 in found.values())


def _check_tables(run: Run, records: int) -> None:
    """What was derived while both were killed is what one run over everything gives."""
    query = f"SELECT protocol, sum(n) FROM {files(run.table(CHANNEL_MINUTE).path)} WHERE channel = 'lobby' GROUP BY 1"
    counted = dict(duckdb.execute(query).fetchall())
    messages = run.table(MESSAGES).frame(run.spark).where("kind = 'message' and channel = 'lobby'")
    assert counted == dict(map(tuple, messages.groupBy("protocol").count().collect()))
    assert counted.keys() == PROTOCOLS
    page = run.options.warehouse / "report.html"
    text = page.read_text()
    if BROWSER is not None:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--dump-dom"]
        profile = f"--user-data-dir={run.options.warehouse / 'browser'}"
        command = [BROWSER, *flags, profile, page.as_uri()]
        text = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    assert read(text).texts["records"].replace(",", "") == str(records)
