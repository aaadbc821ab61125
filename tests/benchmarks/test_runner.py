"""The runner: a whole short run against the reference server, and what it says of servers that are not there."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.generator import WORKLOADS, Result, Target
from benchmarks.measure import Round, cpu_seconds, interleaved
from benchmarks.report import table
from benchmarks.servers import Server
from tests.npm import require_clients

needs_compiler = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")
NATS = Server("nats", 2, Target("nats", "127.0.0.1", 2))
NODE = Server("node", 1, Target("ws", "127.0.0.1", 1))


@needs_compiler
def test_a_short_run_against_the_reference_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_clients()
    workloads = ["fan10", "fan10w1", "m2m", "dm1"]
    asked = ["--quick", "--servers", "node", "--seconds", "0.1", "--out", str(tmp_path), "--workloads"]
    assert main([*asked, *workloads]) == 0
    (written,) = tmp_path.glob("*.json")
    kept = json.loads(written.read_text())
    assert [each["workload"] for each in kept["rounds"]] == workloads
    assert all(each["cpu_seconds"] > 0 and each["result"]["deliveries"] > 0 for each in kept["rounds"])
    assert written.with_suffix(".md").read_text() in capsys.readouterr().out


@needs_compiler
def test_a_server_that_cannot_run_is_named_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--servers", "node", "--node-folder", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "node was not measured: @yume-chan/koshare-router is not installed" in capsys.readouterr().out


def test_servers_take_turns() -> None:
    order = [(server.name, workload) for server, workload in interleaved([NODE, NATS], ["fan10", "dm1"], 2)]
    assert order == [
        *(("node", "fan10"), ("nats", "fan10"), ("nats", "fan10"), ("node", "fan10")),
        *(("node", "dm1"), ("node", "dm1")),
    ]


def _round(server: str, deliveries: int, cpu_seconds: float) -> Round:
    result = Result(deliveries, deliveries, 0, 0, 0, 2.0, 0.5, 100.0, 200.0)
    return Round("fan10", server, cpu_seconds, result)


def test_ratios_are_to_the_reference_server() -> None:
    rounds = [_round("node", 100, 1.0), _round("trellis", 400, 1.0), _round("node", 200, 1.0)]
    node, trellis = table(rounds)
    assert (node.best, node.median, node.ratio_best) == (200, 150, 1.0)
    assert (trellis.ratio_best, trellis.ratio_median) == (2.0, 400 / 150)
    assert trellis.must == WORKLOADS["fan10"].must
    assert table(rounds[1:2])[0].ratio_best is None


def test_cpu_time_is_of_the_whole_process() -> None:
    before = time.process_time()
    assert before <= cpu_seconds(os.getpid())
