"""`trellis demo` shows the matrix of deliveries, and the reason of each that failed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapters.sprout.forest import forest
from gateway.commands import demo
from gateway.commands.arbor_author import ArborAuthor
from gateway.commands.common import CommandError
from gateway.commands.demo import Matrix
from gateway.demo_clients import ReceivedMessage


def test_every_protocol_reaches_every_other(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TRELLIS_PORT": "not for this one"}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "demo"], capture_output=True, timeout=90, env=environment, check=False
    )
    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), out
    broadcasts, directs, sentence = out.split("\n\n")
    for matrix in (broadcasts, directs):
        _title, names, *rows = matrix.splitlines()
        assert names.split() == ["topic", "relay", "Sprout", "Streamr", "REST"]
        drawn = [re.sub(r"✓ +\d+ ms", "✓", line).split() for line in rows]
        assert drawn == [[*name.split(), *"✓✓✓✓"] for name in ("topic relay", "Sprout", "Streamr", "REST")]
    assert sentence == "16 of 16 broadcasts and 16 of 16 direct messages arrived.\n"
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_missing_messages_are_shown_with_their_reason() -> None:
    matrix = Matrix("A title")
    matrix.cells = {("a", "a"): 1.4, ("a", "b"): None, ("b", "a"): 120.0, ("b", "b"): 3.0}
    matrix.faults = ["a to b: refused"]
    assert matrix.arrived == 3
    assert matrix.rows()[1] == {"from": "a", "to": "b", "milliseconds": None}
    assert str(matrix).splitlines() == [
        "A title",
        "                         a            b",
        "a                 ✓   1 ms            ✗",
        "b                 ✓ 120 ms     ✓   3 ms",
        "a to b: refused",
    ]


class ListeningClient:
    """Somebody who hears what it is given."""

    def __init__(self, *heard: ReceivedMessage) -> None:
        self.received: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        for one in heard:
            self.received.put_nowait(one)


def test_only_the_expected_message_counts_as_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TIMEOUT_SECONDS", 0.01)
    what = ReceivedMessage("demo", "hi", True)

    async def said() -> None:
        raise ValueError("status 4")

    async def scenario() -> Matrix:
        matrix = Matrix("")
        listeners = {
            "good": ListeningClient(ReceivedMessage("demo", "other"), what),
            "bad": ListeningClient(ReceivedMessage("demo", "hi", False)),
            "deaf": ListeningClient(),
        }
        await demo._exchange(matrix, "a", listeners, said(), what)
        return matrix

    matrix = asyncio.run(scenario())
    assert [cell is not None for cell in matrix.cells.values()] == [True, False, False]
    assert matrix.faults == ["a to good, bad, deaf: status 4"]


@pytest.mark.parametrize(("broadcast", "direct"), [(1.0, 1.0), (None, 1.0), (1.0, None), (None, None)])
def test_broadcasts_and_direct_messages_decide(
    monkeypatch: pytest.MonkeyPatch, broadcast: float | None, direct: float | None
) -> None:
    async def run(_folder: Path) -> tuple[Matrix, Matrix]:
        return Matrix("", {("a", "a"): broadcast}), Matrix("", {("a", "a"): direct})

    monkeypatch.setattr(demo, "_run", run)
    if missing := [broadcast, direct].count(None):
        with pytest.raises(CommandError, match=f"{missing} of 2 did not arrive"):
            demo.demo()
    else:
        demo.demo()


def test_a_failed_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")

    async def scenario() -> None:
        async with demo.gateway(tmp_path):
            pass

    with pytest.raises(CommandError, match=r"the gateway did not start:\n.*data cannot be used"):
        asyncio.run(scenario())


def test_an_author_reads_its_own_nodes() -> None:
    author = ArborAuthor("ada")
    community = author.identity().id  # any id will do
    node = author.reply(community, "héllo", {"to/1": "7", "json/1": "true"})
    read = author.read(node.raw)
    assert read is not None
    assert read == (community, "héllo", frozenset({"to/1", "json/1"}))
    assert author.read(author.identity().raw) is None
    assert author.reply(community, "héllo", {}).id != author.reply(community, "héllo", {}).id


def test_replies_of_an_author_have_the_current_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replies would look old, and be set aside, were each dated a millisecond after the one before it."""
    author = ArborAuthor("ada")
    now = time.time() + 1000
    monkeypatch.setattr(time, "time", lambda: now)
    replies = [forest.decode(author.reply(author.identity().id, "x", {}).raw) for _ in range(3)]
    assert [reply.created for reply in replies] == [int(now * 1000) + n for n in range(3)]
