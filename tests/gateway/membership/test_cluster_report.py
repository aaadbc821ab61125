"""Members report the state of the cluster over REST, as metrics, and by `trellis cluster status`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamInfo
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cluster.lag import LagMeter
from gateway.cluster.roster import MemberInfo
from gateway.commands.cluster_status import screen
from gateway.commands.remote import Remote
from gateway.jetstream.status import JetStreamStatus, Replica, StoredStream, has_leader, stored_stream
from gateway.membership.cluster_report import report
from tests.properties.cluster import ClusterInstance, Stream, copy_of, next_seq
from tests.properties.in_process_gateway import template


def info(name: str, place: int, next_seq: int) -> MemberInfo:
    return MemberInfo(name, 1, "1", 0.0, next_seq, place, False)


def test_lag_begins_when_others_are_ahead_and_ends_when_they_are_not() -> None:
    now = [100.0]
    lag = LagMeter(lambda: now[0])
    assert lag.measure(info("one", 5, 50), [], 0) == (0, 0, 0.0)
    now[0] += 7
    assert lag.measure(info("one", 5, 50), [info("two", 8, 70)], 6) == (3, 20, 7.0)
    now[0] += 5
    assert lag.measure(info("one", 6, 50), [info("two", 8, 70)], 9) == (3, 20, 12.0)
    now[0] += 1
    assert lag.measure(info("one", 9, 80), [info("two", 8, 70)], 9) == (0, 0, 0.0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterInstance]:
    folder = copy_of(template(), tmp_path / "a")
    node = ClusterInstance(Stream(next_seq(folder)), folder)
    node.catch_up()
    yield node
    node.stop()


def test_a_gateway_that_stays_behind_is_not_ready(node: ClusterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    place = node.transport.place
    stored = StoredStream(1, place + 3, 1000, ())
    monkeypatch.setattr(node.transport, "status", lambda: JetStreamStatus(True, place, 0, "", stored=stored))
    node.membership.tick()
    assert node.membership.trouble is None
    node.transport.seconds += 11
    node.membership.tick()
    assert node.membership.trouble == "the gateway has been behind the cluster for 11 s, by 0 records"


def test_links_are_named_without_their_queries_which_may_hold_keys(node: ClusterInstance) -> None:
    node.membership.signalling.holders.name(["wss://a.example/relay?key=secret"])
    (link,) = report(node.membership, "main")["links"]
    assert link["link"] == "wss://a.example/relay"


def test_a_gateway_with_silent_servers_is_not_ready_without_any_waiter(
    node: ClusterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = [9.0]
    monkeypatch.setattr(node.transport, "status", lambda: JetStreamStatus(True, 1, 0, "no leader", silence=silence[0]))
    assert node.membership.trouble is None
    silence[0] = 12.4
    assert node.membership.trouble == "the cluster has not answered for 12 s: no leader"


def test_replicas_are_read_from_the_answer_of_the_servers() -> None:
    answer = {
        "config": {"name": "main"},
        "state": {"messages": 3, "bytes": 200, "first_seq": 5, "last_seq": 7, "consumer_count": 1},
        "cluster": {
            "leader": "two",
            "replicas": [
                {"name": "three", "current": True, "offline": True, "active": 1, "lag": 4},
                {"name": "one", "current": True, "active": 1},
            ],
        },
    }
    found = stored_stream(StreamInfo.from_response(answer))
    replicas = (Replica("one", False, True, 0), Replica("three", False, False, 4), Replica("two", True, True, 0))
    assert found == StoredStream(5, 7, 200, replicas)


@pytest.mark.parametrize(("cluster", "led"), [(None, True), ({"leader": "two"}, True), ({"name": "trellis"}, False)])
def test_has_leader_reads_the_cluster_of_an_answer(cluster: dict[str, str] | None, led: bool) -> None:
    """A server that is alone has none, and needs none."""
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
    answer: dict[str, Any] = {"config": {"name": "main"}, "state": state, "cluster": cluster}
    assert has_leader(StreamInfo.from_response(answer)) == led


def told() -> dict[str, Any]:
    """What a gateway could tell of its cluster."""
    stream = {"server": "", "connected": False, "position": 3, "first": None, "last": None, "bytes": None}
    replicas = [{"name": "nats-one", "leads": True, "current": True, "lag": 0}]
    replicas += [{"name": "nats-two", "leads": False, "current": False, "lag": 7}]
    member = {"name": "one", "version": "1.0", "started": 1_000, "heardSeconds": 0.0, "sequence": 9, "position": 3}
    other = member | {"name": "two", "accepts": True, "sameTo": 40_960, "differs": ["the log, records 1 to 1,024"]}
    member |= {"accepts": False, "sameTo": None, "differs": []}
    return {
        **{"name": "main", "member": "one", "accepts": False, "turn": None, "trouble": None, "batch": 4},
        **{"ignoredBatches": 1, "reconnects": 2, "unsentBytes": 0, "members": [member, other], "links": []},
        "log": {"last": 40_960, "digest": "9f3ab2c1d4e5f607"},
        **{"lag": {"batches": 2, "records": 1, "seconds": 12.3}, "stream": stream | {"replicas": replicas}},
    }


def test_the_screen_shows_servers_and_lagging_members() -> None:
    text = screen(told(), 61.0)
    assert "nobody now" in text
    assert "1 record for 12 s" in text
    assert "-, not connected; connected again 2 times" in text
    assert "no server has answered yet" in text
    assert re.search(r"^nats-two +follows +no +7$", text, re.MULTILINE)
    assert re.search(r"^one +1\.0 +1 min +9 +3 +0 s ago +no +- +-$", text, re.MULTILINE)
    assert re.search(r"^two .* yes +40,960 +the log, records 1 to 1,024$", text, re.MULTILINE)
    assert "to record 40,960, digest 9f3ab2c1d4e5f607" in text


@pytest.mark.parametrize(
    ("cluster", "code"), [(None, 1), (told(), 0), (told() | {"trouble": "no quorum"}, 1)], ids=["alone", "well", "ill"]
)
def test_the_exit_code_shows_whether_the_gateway_participates(
    monkeypatch: pytest.MonkeyPatch, cluster: Any, code: int
) -> None:
    monkeypatch.setattr(Remote, "get", lambda _self, _path: {"cluster": cluster})
    shown = CliRunner().invoke(app, ["cluster", "status", "--json"])
    assert shown.exit_code == code
    assert json.loads(shown.output) == cluster if cluster is not None else "runs alone" in str(shown.exception)
