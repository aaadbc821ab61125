"""A member whose log has a flipped byte is named, stops, does not start again, and is restored from a backup."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.storage.layout import first_seqs, paths
from tests.gateway.cluster.test_cluster import Cluster, history, say
from tests.gateway.cluster.test_newcomer import trellis
from tests.server import Server
from tests.waiting import until

OFTEN = {  # small blocks, which are read all the time
    "gateway.cluster.log_comparison.BLOCK": 8,
    "gateway.membership.log_reading.BLOCK": 8,
    "gateway.membership.log_reading.PAUSE_SECONDS": 0.05,
}
SAID = [f"message {number}" for number in range(30)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def members(gateway: Server) -> dict[str, Any]:
    """The members as *gateway* sees them, by name."""
    found = httpx.get(f"http://{gateway.http}/v1/stats").json()["cluster"]["members"]
    return {each["name"]: each for each in found}


def same_to(gateway: Server, member: str) -> int:
    """Up to which record the log of *member* is known to be that of *gateway*."""
    return members(gateway).get(member, {}).get("sameTo") or 0


def flip(folder: Path) -> int:
    """Flip a bit in the middle of the log in *folder*; the sequence of its record."""
    for first in first_seqs(folder / "log"):
        path = next(filter(Path.exists, paths(folder / "log", first)))
        data = path.read_bytes()
        if (at := data.find(b"message 9")) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
            return first + data.count(b"\n", 0, at)
    raise AssertionError("it is not in the log")


def test_a_flipped_bit_in_one_log_is_found_and_healed(cluster: Cluster, tmp_path: Path) -> None:
    one = cluster.start("one", constants=OFTEN)
    two, three = (cluster.start(name, keys_of="one", constants=OFTEN) for name in ("two", "three"))
    for text in SAID:
        say(one, text)
    until(lambda: min(same_to(one, "two"), same_to(one, "three")) >= len(SAID))
    seq = flip(tmp_path / "two")
    first = (seq - 1) // 8 * 8 + 1
    named = [f"the log, records {first} to {first + 7}"]

    seen: list[Any] = []
    while two.process.poll() is None:
        seen.append(members(one).get("two", {}).get("differs"))
        time.sleep(0.02)
    assert two.kill() == 1
    text = f"the log is damaged: records {first} to {first + 7} are not what other members have"
    assert text in two.log
    assert named in seen, "the others name it as long as it is there"
    assert members(three)["one"]["differs"] == [], "nobody else is taken for damaged"
    with pytest.raises(RuntimeError, match="the log is damaged: records"):
        cluster.start("two")

    say(three, "meanwhile")
    (tmp_path / "two").rename(tmp_path / "set aside")
    trellis("backup", tmp_path / "backup", "--data", tmp_path / "three")
    trellis("restore", tmp_path / "backup", "--data", tmp_path / "two")
    two = cluster.start("two", constants=OFTEN)
    assert history(two) == [*SAID, "meanwhile"]
    until(lambda: same_to(one, "two") >= seq)
    assert members(one)["two"]["differs"] == []
    for gateway in (one, two, three):
        gateway.stop()
    logs = [cluster.log(name) for name in ("one", "two", "three")]
    shortest = min(map(len, logs))
    assert len({log[:shortest] for log in logs}) == 1
