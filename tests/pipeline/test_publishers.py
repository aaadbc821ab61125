"""Problems of each publisher cause alerts, on the bus and by a webhook."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from gateway.access.authorization import KeyFile
from pipeline.jobs import publishers as job
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, GAPS, INTEGRITY, PUBLISHERS, STREAMR, TableSpec
from pipeline.sinks.bus import ALERTS
from pipeline.sinks.state import TableState
from tests.pipeline.ingested import rows
from tests.server import Server
from tests.waiting import until

MakeRun = Callable[..., Run]


def row(spec: TableSpec, **told: Any) -> tuple[Any, ...]:
    return tuple(told.get(name) for name in spec.schema.fieldNames())


def message(seq: int, publisher: str) -> tuple[Any, ...]:
    return row(
        STREAMR, gateway_id="g", log_seq=seq, stream="s", partition=0, publisher=publisher, chain="c", ts=seq, seq=0
    )


def node(seq: int, author: str | None) -> tuple[Any, ...]:
    """A node; an identity names no author."""
    given = {"type": 0 if author is None else 2, "author": author or "NullHash_B0__"}
    return row(ARBOR_NODES, gateway_id="g", log_seq=seq, node_id=f"n{seq}", **given)


def gap(ts: int, publisher: str, state: str) -> tuple[Any, ...]:
    return row(GAPS, stream="s", partition=0, publisher=publisher, chain="c", ts=ts, seq=0, state=state)


def verdict(seq: int, check: str, publisher: str = "", told: str = "bad", of: str | None = None) -> tuple[Any, ...]:
    """A verdict; those of older versions do not say *of* whose signature."""
    id = json.dumps(["s", 0, seq, 0, publisher, "c"]) if publisher else f"n{seq}"
    return row(INTEGRITY, gateway_id="g", log_seq=seq, native_id=id, check=check, verdict=told, publisher=of)


def fill(run: Run, tables: dict[TableSpec, list[tuple[Any, ...]]], batch: int = 1) -> None:
    """Have the tables other jobs make hold the given rows and no others."""
    for spec, told in tables.items():
        table = run.table(spec, spec.job)
        table.replace(table.stage_rows(told), TableState(batch), batch=True)


# Two publishers of streams, one in other letters, and two authors; 8 and 9 are forged copies that no silver table has.
TABLES = {
    STREAMR: [message(1, "0xa"), message(2, "0xa"), message(3, "0xb")],
    ARBOR_NODES: [node(4, None), node(5, "n4"), node(6, "n4")],
    GAPS: [gap(1, "0xa", "filled"), gap(2, "0xa", "open"), gap(3, "0xb", "unknown before")],
    INTEGRITY: [
        verdict(8, "openpgp", of="n4"),
        verdict(9, "eth", "0xB"),
        verdict(1, "eth", "0xa", "ok"),
        verdict(5, "openpgp"),
        verdict(5, "node_id"),
    ],
}
EXPECTED = [
    ("sprout", "n4", 3, 0, None, 2, 8),
    ("streamr", "0xa", 2, 1, 2, 0, None),
    ("streamr", "0xb", 1, 0, None, 1, 9),
]


class PostReceiver(BaseHTTPRequestHandler):
    got: list[Any]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@pytest.mark.usefixtures("spark")
def test_an_alert_is_published_once_and_pushed(make_run: MakeRun, tmp_path: Path) -> None:
    key = KeyFile(tmp_path / "data/keys/api-keys.json").add("pipeline", ["*:*", "admin:*"])
    got: list[Any] = []
    receiver = type("Here", (PostReceiver,), {"got": got})
    hooks = {"TRELLIS_WEBHOOKS__ALLOW_NETWORKS": '["127.0.0.0/8"]'}
    with Server(tmp_path / "data", env=hooks) as server, ThreadingHTTPServer(("127.0.0.1", 0), receiver) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://{server.http}"
        told = {"url": f"http://127.0.0.1:{http.server_port}/", "channels": ALERTS}
        headers = {"Authorization": f"Bearer {key}"}
        httpx.post(f"{url}/v1/webhooks", json=told, headers=headers).raise_for_status()
        run = make_run(publish=url, key=key)
        fill(run, TABLES)
        assert job.run(run) == 1
        assert rows(run, PUBLISHERS) == EXPECTED
        note = run.options.warehouse / ".checkpoints/alerts/note.json"
        before = note.read_text()
        note.unlink()  # as if it had been killed before it could take note
        assert job.run(run) == 0
        assert note.read_text() == before
        # What was missing is there, and another signature is bad.
        fill(run, {GAPS: [], INTEGRITY: [*TABLES[INTEGRITY], verdict(10, "eth", "0xb")]}, batch=2)
        assert job.run(run) == 1
        until(lambda: len(got) >= 4)
        heard = httpx.get(f"{url}/v1/channels/{ALERTS.replace('/', '%2F')}/messages", headers=headers).json()[
            "messages"
        ]
        http.shutdown()
    contents = [one["content"] for one in got]
    assert [one["content"] for one in heard] == contents
    assert sorted((one["alert"], one["publisher"], one["count"], one["messages"]) for one in contents) == [
        ("gaps", "0xa", 1, 2),
        ("signatures", "0xb", 1, 1),
        ("signatures", "0xb", 2, 1),
        ("signatures", "n4", 2, 3),
    ]


def test_a_warehouse_without_problems_publishes_no_alert(spark: SparkSession, make_run: MakeRun) -> None:
    del spark
    run = make_run(publish="http://127.0.0.1:1")
    fill(run, {spec: [] for spec in TABLES})
    assert job.run(run) == 1
    assert rows(run, PUBLISHERS) == []
