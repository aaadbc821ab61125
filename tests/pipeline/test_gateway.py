"""The pipeline reads the log of a running gateway over HTTP, and publishes statistics to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from typer.testing import CliRunner

from gateway.access.authorization import KeyFile
from gateway.cli import app
from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients import Client, RelayClient, SproutClient, StreamrClient
from gateway.storage.archive import sealed_files
from gateway.storage.importing import import_log
from pipeline import main
from pipeline.config import HttpSource, LogSource
from pipeline.errors import PipelineError, Unreachable
from pipeline.jobs import ingest, stats
from pipeline.run import Run
from pipeline.schemas import CHANNEL_MINUTE, REJECTS
from pipeline.sinks.bus import CHANNEL
from pipeline.sources import gateway as remote
from pipeline.sources import requests
from pipeline.sources.records import decode_row
from pipeline.sources.stream import LogStream
from tests.gateway.cluster.test_cluster import Cluster
from tests.gateway.cluster.test_cluster import say as publish
from tests.pages import ROOT, PageRunner
from tests.pipeline.generate import lines, mixed, talk
from tests.pipeline.ingested import rows
from tests.server import Server

MakeRun = Callable[..., Run]
LAST = {"what": "the last message of a test"}
GRANTS = {f"{name}:anonymous": ["subscribe:*"] for name in ("topic_relay", "streamr", "sprout")}


def say(server: Server, texts: list[str]) -> None:
    body = "\n".join(json.dumps({"text": text}) for text in texts)
    url = f"http://{server.http}/v1/channels/lobby/messages"
    httpx.post(url, content=body, headers={"Content-Type": "application/x-ndjson"}).raise_for_status()


def test_a_gateways_log_is_read_over_http_and_is_the_same_as_its_files(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "TASK_RECORDS", 30)
    monkeypatch.setattr(remote, "BATCH_RECORDS", 70)
    grants = json.dumps({"rest:anonymous": ["*:*", "admin:*"]})
    with Server(tmp_path / "data", env={"TRELLIS_AUTH__GRANTS": grants}) as server:
        say(server, [*(f"first {n}" for n in range(100)), "später \U0001f600"])
        run = make_run(source=HttpSource(f"http://{server.http}"))
        assert ingest.run(run) == 2
        server.stop()
        with pytest.raises(PipelineError, match="cannot be reached"):
            ingest.run(run)
    told = [
        line for path in sealed_files(tmp_path / "data/log") for line in path.read_bytes().splitlines(keepends=True)
    ]
    gateway = json.loads(told[0])["gateway"]
    decoded = sorted(decode_row(line, gateway) for line in told)
    heard = rows(run)
    assert heard == decoded[: len(heard)]
    assert 0 <= len(told) - len(heard) < 5, "what the gateway says when it stops"
    assert sum(row[4] == "message" for row in heard) == 101
    assert rows(run, REJECTS) == []
    again = make_run(source=LogSource(tmp_path / "data/log"))
    ingest.run(again)
    assert rows(again) == decoded, "the files may take over from the gateway: nothing twice"


def test_each_run_may_read_another_gateway_of_a_cluster(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP from one, which is killed; then from another; then the files of one that came in its place."""
    monkeypatch.setenv("TRELLIS_AUTH__GRANTS", json.dumps({"rest:anonymous": ["*:*", "admin:*"]}))
    cluster, said = Cluster(tmp_path), []
    try:
        one, two = cluster.start("one"), cluster.start("two", keys_of="one")
        said += [publish(gateway, f"message {n}") for n in range(6) for gateway in (one, two)]
        run = make_run(source=HttpSource(f"http://{one.http}"))
        assert ingest.run(run)
        before = rows(run)
        one.kill()
        said += [publish(two, f"after the kill {n}") for n in range(6)]
        assert ingest.run(make_run(source=HttpSource(f"http://{two.http}")))
        three = cluster.start("three", keys_of="two")
        said += [publish(gateway, f"with a new one {n}") for n in range(3) for gateway in (three, two)]
    finally:
        cluster.stop()
    logs = sorted((cluster.log(name), name) for name in ("two", "three"))
    for _, name in logs:
        ingest.run(make_run(source=LogSource(tmp_path / name)))
    assert logs[1][0].startswith(logs[0][0]), "whoever stops last says more"
    logged = logs[1][0].splitlines(keepends=True)
    gateway = next(json.loads(line)["gateway"] for line in logged if b'"kind":"start"' in line)
    told = rows(run)
    assert told == sorted(decode_row(line, gateway) for line in logged)
    assert {*before} < {*told}
    assert {*said} <= {row[1] for row in told if row[4] == "message"}
    assert rows(run, REJECTS) == []


def test_the_commands_of_the_how_to_page_work_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands on the Spark of these tests; `test_processes.py` starts processes of their own."""
    page = ROOT / "docs" / "how-to" / "data-pipeline.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main, "start", lambda _options: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)

    def look() -> None:
        written = [path.read_text() for path in (tmp_path / "warehouse").rglob("*.json")]
        assert not any(os.environ["TRELLIS_KEY"] in text for text in written), "the key is written down nowhere"
        assert any("commitInfo" in text for text in written)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Server(tmp_path / "trellis-data") as server:
            PageRunner(tmp_path, {"127.0.0.1:8080": server.http}).read(page, look)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_stream_has_each_record_once_in_batches_of_its_limit(spark: SparkSession, tmp_path: Path) -> None:
    """Structured Streaming on the log: its own offsets and checkpoint, `availableNow`, and progress."""
    grants = json.dumps({"rest:anonymous": ["*:*", "admin:*"]})
    batches: dict[int, list[Any]] = {}

    def take(frame: DataFrame, batch: int) -> None:
        batches[batch] = frame.select("seq", "content").collect()

    def available(server: Server) -> list[Any]:
        """What the listener is told of a query that reads everything that is there now."""
        rows = spark.readStream.format(remote.NAME).option("url", f"http://{server.http}")
        query = rows.option("maxRecordsPerTrigger", 30).load().writeStream.foreachBatch(take)
        run = query.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
        assert run.awaitTermination(100)
        return [progress for progress in run.recentProgress if progress.numInputRows]

    spark.dataSource.register(remote.RemoteLog)
    with Server(tmp_path / "data", env={"TRELLIS_AUTH__GRANTS": grants}) as server:
        say(server, [f"first {n}" for n in range(80)])
        told = available(server)
        first = sum(map(len, batches.values()))
        assert [progress.numInputRows for progress in told] == [30, 30, first - 60]
        assert json.loads(told[0].sources[0].endOffset)["after"] == 30
        assert json.loads(told[0].sources[0].latestOffset)["after"] == first, "how far it is behind"
        say(server, ["one more"])
        available(server)
        assert len(batches) == 4, "it continues from its checkpoint"
        read = [row for batch in sorted(batches) for row in batches[batch]]
        assert [row.seq for row in read] == [*range(1, len(read) + 1)]
        said = [json.loads(row.content)["text"] for row in read if row.content]
        assert said == [*(f"first {n}" for n in range(80)), "one more"]
        others = LogStream({"url": f"http://{server.http}"})
        with pytest.raises(PipelineError, match="use another checkpointLocation"):
            others.latestOffset({"gateway": "another", "after": 0}, ReadAllAvailable())


class Spoiled(BaseHTTPRequestHandler):
    """Answers a log as a gateway does, with a line in it that was damaged on the way."""

    told: ClassVar[list[bytes]] = lines(talk(30))

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        after, limit = (int(asked.get(name, ["0"])[0]) for name in ("after", "limit"))
        some = [*self.told[:20], self.told[20].replace(b"time", b"tIme", 1), *self.told[21:]]
        body = b"".join(some[after : after + limit]) if "/log" in self.path else b'{"sequence":30}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


def test_a_line_damaged_in_transit_is_rejected_with_its_position(make_run: MakeRun) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Spoiled) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run = make_run(source=HttpSource(url := f"http://127.0.0.1:{server.server_port}"))
        assert ingest.run(run) == 1
        server.shutdown()
    assert [row[1] for row in rows(run)] == [*range(1, 21), *range(22, 31)]
    ((file, line, reason, _),) = rows(run, REJECTS)
    assert (file, line, reason.partition(":")[0]) == (f"{url}/v1/log", 21, "checksum")


class BusyGateway(Spoiled):
    """Answers like that, but has no time for those who read from the first record on, as a gateway that begins."""

    def do_GET(self) -> None:
        if "/log" in self.path and "limit=100" not in self.path:
            self.send_error(503)
        else:
            super().do_GET()


def test_following_continues_when_the_gateway_returns(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway is away, has no time for the workers, and then has."""
    stop, said, tries = threading.Event(), list[str](), list[str]()
    with ThreadingHTTPServer(("127.0.0.1", 0), BusyGateway) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        run = replace(make_run(source=HttpSource(url), follow=True, interval_seconds=0), say=said.append)

        def attempt(run: Run) -> int:
            tries.append("away" if not tries else "busy" if len(tries) == 1 else "well")
            if tries[-1] == "away":
                run = replace(run, options=replace(run.options, source=HttpSource("http://127.0.0.1:1")))
            server.RequestHandlerClass = BusyGateway if tries[-1] == "busy" else Spoiled
            if len(tries) == 4:
                stop.set()
            return ingest.run(run)

        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(main, "job", lambda _name: attempt)
        main.repeat("ingest", run, stop)
        server.shutdown()
    troubles = [text for text in said if "it is tried again" in text]
    assert ["cannot be reached" in troubles[0], "answers 503" in troubles[1], len(troubles)] == [True, True, 2]
    assert "ingest: goes on" in said
    assert len(rows(run)) == 29
    with pytest.raises(Unreachable):
        ingest.run(make_run(source=HttpSource("http://127.0.0.1:1")))


def test_a_missing_or_wrong_key_is_reported(make_run: MakeRun, tmp_path: Path) -> None:
    KeyFile(tmp_path / "data/keys/api-keys.json").add("pipeline", ["admin:*", "history:*"])
    with Server(tmp_path / "data") as server:
        url = f"http://{server.http}"
        for wrong in (None, "trellis_wrong"):
            with pytest.raises(PipelineError, match=r"answers 40[13]"):
                ingest.run(make_run(source=HttpSource(url, wrong)))
            for job, option in (("ingest", "--source"), ("stats", "--publish"))[: 2 if wrong else 1]:
                given = [option, url, "--key", wrong or "", "--warehouse", str(tmp_path / "warehouse")]
                done = CliRunner().invoke(app, ["pipeline", job, *given])
                assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
                assert f"{option}: {url} refuses" in done.stderr


def test_statistics_are_published_once_on_every_protocol(make_run: MakeRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    import_log(lines(mixed(400)), data, 1 << 47)
    key = KeyFile(data / "keys" / "api-keys.json").add("pipeline", ["*:*", "admin:*"])
    with Server(data, "--adopt", env={"TRELLIS_AUTH__GRANTS": json.dumps(GRANTS)}) as server:
        url = f"http://{server.http}"
        run = make_run(source=HttpSource(url, key), publish=url, key=key)
        heard = asyncio.run(_listen(run, server, key))
    told = rows(run, CHANNEL_MINUTE)
    over = {(row[0], row[2]) for row in told}
    assert len(over) > 3
    for messages in heard.values():
        assert len(messages) == len({json.dumps(one) for one in messages}), "nothing twice"
        by_channel = [one for one in messages if one["channel"] is not None]
        assert len(by_channel) == len(over)
        assert sum(p["n"] for one in by_channel for p in one["protocols"].values()) == sum(row[3] for row in told)
        flows = [flow for one in messages if one["channel"] is None for flow in one["latency"]]
        assert {(flow["from"], flow["to"]) for flow in flows} == {("streamr", "sprout")}
    assert len({json.dumps(messages) for messages in heard.values()}) == 1, "all hear the same"


async def _listen(run: Run, server: Server, key: str) -> dict[str, list[Any]]:
    """What a peer of each protocol hears while the statistics are published, twice."""
    community = await _community(server, key)
    sprout = SproutClient(server.http, server.sprout, ArborAuthor("listener"))
    sprout._communities[CHANNEL] = community
    clients: list[Client] = [RelayClient(server.http), StreamrClient(server.http), sprout]
    for client in clients:
        await client.__aenter__()
        await client.subscribe(CHANNEL)
    ingest.run(run)
    stats.run(run)
    until = stats.watermark(run)
    assert until is not None
    note = run.options.warehouse / ".checkpoints/publish/note.json"
    assert json.loads(note.read_text()) == {run.options.publish: until}
    note.unlink()  # as if it had been killed before it could take note
    ingest.run(run)
    stats.run(run)
    heard: dict[str, list[Any]] = {}
    url = f"http://{server.http}/v1/channels/{quote(CHANNEL, safe='')}/messages"
    httpx.post(url, json=LAST, headers={"Authorization": f"Bearer {key}"}).raise_for_status()
    for client in clients:
        heard[client.protocol] = []
        while (content := (await client.next()).content) != LAST:
            heard[client.protocol].append(content)
        await client.__aexit__()
    return heard


async def _community(server: Server, key: str) -> str:
    path = f"http://{server.http}/v1/channels/{quote(CHANNEL, safe='')}"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
        (await client.put(path)).raise_for_status()
        while (id := (await client.get(path)).json().get("community")) is None:
            await asyncio.sleep(0.05)
    return str(id)
