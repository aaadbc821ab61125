"""Gateways report a deleted stream and end, and a new stream begins with the longest log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.gateway.cluster.test_cluster import IMPATIENT, SECONDS, Cluster, history, say
from tests.gateway.cluster.test_newcomer import trellis
from tests.gateway.jetstream.test_deleted_stream import delete, exists
from tests.waiting import until

CONSTANTS = {**IMPATIENT, "gateway.jetstream.reader.HOLE_SECONDS": 1.0}
GONE = "the NATS servers have no stream main, of which "
ANOTHER = {"TRELLIS_CLUSTER__NAME": "another"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def test_only_the_operator_replaces_a_deleted_stream(cluster: Cluster, tmp_path: Path) -> None:
    one = cluster.start("one", constants=CONSTANTS)
    two = cluster.start("two", keys_of="one", constants=CONSTANTS)
    said = [f"message {number}" for number in range(6)]
    for number, text in enumerate(said):
        say((one, two)[number % 2], text)
    until(lambda: history(one) == history(two) == said)
    asyncio.run(delete(cluster.nats.url, "main"))

    with suppress(httpx.TransportError):  # it may have ended
        answer = httpx.post(f"http://{one.http}/v1/channels/lobby/messages", json="not accepted", timeout=SECONDS)
        assert answer.status_code == 503
    for gateway in (one, two):
        until(lambda gateway=gateway: gateway.process.poll() is not None)  # type: ignore[misc]
        assert gateway.kill() == 1
        assert GONE in gateway.log
    with pytest.raises(RuntimeError, match=GONE):
        cluster.start("two", constants=CONSTANTS)
    assert not asyncio.run(exists(cluster.nats.url, "main"))

    (tmp_path / "one" / "stream-position.json").unlink()
    one = cluster.start("one", env=ANOTHER)
    assert history(one) == said
    say(one, "in the new stream")
    (tmp_path / "two").rename(tmp_path / "set aside")
    trellis("backup", tmp_path / "backup", "--data", tmp_path / "one")
    trellis("restore", tmp_path / "backup", "--data", tmp_path / "two")
    two = cluster.start("two", env=ANOTHER)
    say(two, "by both")
    until(lambda: history(one) == history(two) == [*said, "in the new stream", "by both"])
