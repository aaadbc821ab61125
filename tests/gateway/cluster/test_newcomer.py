"""A gateway joins a cluster from a backup when the stream no longer has its beginning."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from typer.testing import CliRunner

from gateway.backup import snapshot
from gateway.cli import app
from tests.gateway.cluster.test_cluster import Cluster, history, say
from tests.waiting import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


async def forget(url: str, place: int) -> None:
    """Have the stream forget what is not behind *place*, as it does after seven days."""
    client = await nats.connect(url)
    manager = client.jsm()
    found = await manager.stream_info("main")
    await manager.update_stream(found.config.evolve(max_msgs=found.state.last_seq - place))
    await manager.update_stream(found.config)  # more batches come
    await client.close()


def trellis(*arguments: object) -> None:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output


def test_a_newcomer_begins_with_the_backup_of_a_member(cluster: Cluster, tmp_path: Path) -> None:
    one = cluster.start("one")
    position = tmp_path / "one" / "stream-position.json"
    until(position.exists)
    place = json.loads(position.read_text())["place"]
    for number in range(3):
        say(one, f"early {number}")
    trellis("backup", tmp_path / "backup", "--data", tmp_path / "one")
    say(one, "after the backup")
    asyncio.run(forget(cluster.nats.url, place))
    with pytest.raises(RuntimeError, match=r"the stream begins at .*: restore a backup of a member"):
        cluster.start("empty", keys_of="one")
    trellis("restore", tmp_path / "backup", "--data", tmp_path / "two")
    two = cluster.start("two")
    assert history(two) == ["early 0", "early 1", "early 2", "after the backup"]
    say(two, "from the newcomer")
    until(lambda: history(one)[-1] == "from the newcomer")


def test_a_backup_has_no_position_beyond_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "gateway.json").write_text("{}")
    (tmp_path / "log").mkdir()
    position = tmp_path / "stream-position.json"
    position.write_text("of the log")
    (tmp_path / ".stream-position.json.new").write_text("half of it")
    copied = snapshot._log

    def copy(*arguments: object) -> object:
        found = copied(*arguments)  # type: ignore[arg-type]
        position.write_text("later")
        return found

    monkeypatch.setattr(snapshot, "_log", copy)
    with ExitStack() as stack:
        sources = snapshot.take(tmp_path, {}, stack, tmp_path, index=False)
        found = {source.name: source.file.read() for source in sources if source.name.startswith("files/")}
    assert found == {"files/stream-position.json": b"of the log"}
