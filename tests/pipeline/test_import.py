"""Imported data becomes segments, which a gateway shows on every protocol."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs
from websockets.asyncio.client import connect

from adapters.sprout.forest.forest import Reply, decode
from adapters.streamr.wire.message import StreamMessage, parse_message
from gateway.core.message import Message
from gateway.storage.archive import export, sealed_files, verify
from gateway.storage.record import Entry, decode_base64url
from pipeline.config import DumpSource, GroveSource, LogSource
from pipeline.errors import PipelineError
from pipeline.jobs import job
from pipeline.run import Run
from tests.adapters.streamr.test_streamr_dumps import conversation, dump
from tests.pipeline.generate import VECTORS, lines, talk, write
from tests.server import Server

MakeRun = Callable[..., Run]
GROVE = VECTORS / "sprout/vector-grove"
FORMS = ("object", "protocol", "raw")


def make(run: Run, folder: Path) -> list[dict[str, Any]]:
    """Import into *folder*; the rejects."""
    job("import")(run)
    assert run.options.output == folder
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]


def take(folder: Path, data: Path) -> str:
    """`trellis import FOLDER`; what it says."""
    command = [sys.executable, "-m", "gateway", "import", str(folder), "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_rest(entry: Entry) -> Entry:
    """The same without what protocols made of it: a gateway takes what is said to be theirs only if it is."""
    if not isinstance(entry, Message):
        return entry
    return structs.replace(entry, protocol="rest", wire=None, native=None, refs={}, undelivered=())


def without_half(form: str) -> list[StreamMessage]:
    """A conversation; without what JSON in other hands does not bring back."""
    return [one for one in conversation(5, f"old/{form}") if form != "object" or "ud83d" not in one.content]


def test_dumps_and_groves_become_history_on_every_protocol(make_run: MakeRun, tmp_path: Path) -> None:
    dumps, data = tmp_path / "dumps", tmp_path / "data"
    dumps.mkdir()
    for form in FORMS:
        (dumps / form).write_bytes(dump(without_half(form), form))
    forged = parse_message(conversation(1, "old/raw")[0].encode(32).replace(b'\\"a\\":1', b'\\"a\\":2'))
    with (dumps / "raw").open("ab") as file:
        file.write(b"\n[32,1]\n" + forged.encode(32) + b"\n")
    run = make_run(source=DumpSource(dumps), output=tmp_path / "streamr")
    rejects = make(run, tmp_path / "streamr")
    assert [(Path(one["file"]).name, one["line"]) for one in rejects] == [("raw", 6), ("raw", 7)]
    assert rejects[1]["reason"] == "corrupt: a forged signature"
    with pytest.raises(PipelineError, match="not empty"):
        job("import")(run)
    assert make(make_run(source=GroveSource(GROVE), output=tmp_path / "grove"), tmp_path / "grove") == []

    count = sum(len(without_half(form)) for form in FORMS)
    assert f"{count} messages and nodes imported, 0 known already" in take(tmp_path / "streamr", data)
    assert f"{len(list(GROVE.iterdir()))} messages and nodes imported" in take(tmp_path / "grove", data)
    assert f"0 messages and nodes imported, {count} known already" in take(tmp_path / "streamr", data)
    assert verify(data / "log").faults == []
    with Server(data) as server:
        for form in FORMS:
            _check_stream(server, f"old/{form}", without_half(form), signed=form != "object")
        _check_grove(server)


def _check_stream(server: Server, stream: str, said: list[StreamMessage], *, signed: bool) -> None:
    path = f"http://{server.http}/v1/channels/{stream.replace('/', '%2F')}"
    history = httpx.get(f"{path}/messages", params={"order": "asc"}).json()["messages"]
    assert [one["content"] for one in history] == [json.loads(one.content) for one in said]
    assert [one["timestamp"] for one in history] == [one.id.timestamp for one in said]
    rows = asyncio.run(_resend(server, stream, len(said)))
    assert [json.loads(one.content) for one in rows] == [json.loads(one.content) for one in said]
    if signed:
        assert [one.wire for one in rows] == [one.wire for one in said]
    described = httpx.get(path).json()
    nodes = leaves_of(server, described["community"], 99)
    texts = [raw for raw in nodes if isinstance(raw, Reply)]
    assert len(texts) >= len(said), "one node for each, however they hang together"


async def _resend(server: Server, stream: str, count: int) -> list[StreamMessage]:
    url = f"ws://{server.http}/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
    rows: list[StreamMessage] = []
    async with connect(url, compression=None) as socket:
        await socket.send(json.dumps([2, 11, "r", stream, 0, count, None]))
        async for text in socket:
            frame = json.loads(text)
            if frame[1] in (5, 6):
                return rows
            if frame[1] == 1:
                assert isinstance(text, str)
                start = text.index("[32,", 1)
                rows.append(parse_message(text[start : text.rindex("]")]))
    return rows


@contextmanager
def sprout(server: Server) -> Iterator[Any]:
    host, _, port = server.sprout.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as wire, wire.makefile("rwb") as file:
        yield file


def leaves_of(server: Server, node: str, quantity: int) -> list[Any]:
    """The leaves below *node*, decoded, once there are some: those of others are signed when they are asked for."""
    with sprout(server) as file:
        file.write(b"leaves_of 7 %b %d\n" % (node.encode(), quantity))
        file.flush()
        while line := file.readline():
            words = line.split()
            if words[:2] == [b"response", b"7"]:
                return [decode(decode_base64url(file.readline().split()[1])) for _ in range(int(words[2]))]
            if words[0] == b"version":
                file.write(b"status %b 0\n" % words[1])
                file.flush()
    raise AssertionError("it has closed the connection")


def _check_grove(server: Server) -> None:
    """Every reply of the grove is in the history of its community's channel, and is a node that Arbor is given."""
    given = {path.name: decode(path.read_bytes()) for path in GROVE.iterdir()}
    replies = {id: node for id, node in given.items() if isinstance(node, Reply)}
    channels = httpx.get(f"http://{server.http}/v1/channels").json()["channels"]
    names = {one.get("community"): one["name"] for one in channels}
    found = set()
    for community in {node.community for node in replies.values()}:
        path = f"http://{server.http}/v1/channels/{names[community].replace('/', '%2F')}/messages"
        found |= {one["native"].get("sprout") for one in httpx.get(path, params={"limit": 99}).json()["messages"]}
        below = [node for node in replies.values() if node.community == community]
        parents = {node.parent for node in replies.values()}
        leaves = [node for id, node in replies.items() if node in below and id not in parents]
        shown = {node.signature for node in leaves_of(server, community, 99)}  # and what the gateway has minted
        assert {node.signature for node in leaves} <= shown
    assert found == replies.keys()


def test_exported_logs_are_copied_without_invalid_lines(make_run: MakeRun, tmp_path: Path) -> None:
    told = lines(map(as_rest, talk(120)))
    write(tmp_path / "log", [*told[:50], b"rubbish\n", *told[50:]], each=40)
    rejects = make(make_run(source=LogSource(tmp_path / "log"), output=tmp_path / "out"), tmp_path / "out")
    assert [(one["line"], one["reason"].partition(":")[0]) for one in rejects] == [(11, "foreign")]
    assert b"".join(path.read_bytes() for path in sealed_files(tmp_path / "out")) == b"".join(told)
    assert "120 records imported" in take(tmp_path / "out", tmp_path / "data")
    with (tmp_path / "again").open("wb") as file:
        export(tmp_path / "data/log", file)
    *again, added = (tmp_path / "again").read_bytes().splitlines(keepends=True)
    assert again == told
    assert b'"first":' in added, "the numbers that senders have there are nobody's any more"
    one = make_run(source=LogSource(tmp_path / "again"), output=tmp_path / "one")
    assert make(one, tmp_path / "one") == []
    assert len(sealed_files(tmp_path / "one")) == 1


def test_forged_and_misnamed_nodes_are_rejected(make_run: MakeRun, tmp_path: Path) -> None:
    grove = tmp_path / "grove"
    grove.mkdir()
    for path in GROVE.iterdir():
        (grove / path.name).write_bytes(path.read_bytes())
    reply = next(path for path in sorted(grove.iterdir()) if isinstance(decode(path.read_bytes()), Reply))
    (grove / f"{reply.name[:-1]}A").write_bytes(reply.read_bytes())
    reply.write_bytes(reply.read_bytes()[:-1] + b"\0")
    (grove / "SHA512_B32__x").write_bytes(b"?")
    (grove / "notes.txt").write_text("somebody else's")
    rejects = make(make_run(source=GroveSource(grove), output=tmp_path / "out"), tmp_path / "out")
    assert {Path(one["file"]).name for one in rejects} == {reply.name, f"{reply.name[:-1]}A", "SHA512_B32__x"}
    with pytest.raises(PipelineError, match="--output"):
        job("import")(make_run(source=GroveSource(grove)))
    for nothing in (GroveSource(tmp_path / "no"), DumpSource(tmp_path / "no"), LogSource(tmp_path / "no"), None):
        with pytest.raises(PipelineError, match=r"source|nothing to import"):
            job("import")(make_run(source=nothing, output=tmp_path / "other"))
