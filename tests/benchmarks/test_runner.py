"""The two benchmark commands complete a short run, and report servers that cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import compare
from benchmarks.__main__ import main
from benchmarks.page import git
from benchmarks.workload import ROOT
from tests.npm import require_clients

SHORT = ["--quick", "--seconds", "0.1"]


def test_a_short_run_beside_the_reference_servers(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_clients()
    names = ["fan10", "rate-streamr"]
    where = ["--out", str(out), "--page", str(tmp_path), "--note", "A test.", "--servers", "trellis", "node", "broker"]
    assert main([*names, *SHORT, *where]) == 0
    said = capsys.readouterr().out
    kept = json.loads(Path(said.rpartition("Kept in ")[2].strip()).read_text())
    assert [each["workload"] for each in kept["table"]] == [name for name in names for _ in range(2)]
    assert all(each["cpu_seconds"] > 0 and each["result"]["items"] > 0 for each in kept["rounds"])
    page = (tmp_path / "performance.md").read_text()
    assert page in said
    assert "**A test.**" in page
    assert "| fan10: 1 to 10, 16 in flight, lockstep | trellis |" in page
    pictures = {path.name for path in (tmp_path / "performance").iterdir()}
    assert pictures == {"topic-relay.svg", "latency-at-a-set-rate.svg"}
    assert all(f"(performance/{name})" in page for name in pictures)


def test_a_server_that_cannot_run_is_named_with_the_reason(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fan10", *SHORT, "--out", str(out), "--node-folder", str(out), "--servers", "node"]) == 1
    assert "node was not measured: @yume-chan/koshare-router is not installed" in capsys.readouterr().out


def test_an_unknown_workload_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fan99"])
    assert "no workload is called fan99" in capsys.readouterr().err


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_two_commits_are_compared(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert compare.main(["HEAD", "fan10w1", *SHORT, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    (row,) = [line for line in said.splitlines() if line.startswith("| fan10w1")]
    here, there, ratio, *_ = [cell.strip() for cell in row.strip("|").split("|")][1:]
    assert here
    assert there
    assert float(ratio.split()[0]) > 0
    assert str(tmp_path) not in git(ROOT, "worktree", "list")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_a_terminated_comparison_leaves_nothing(out: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.compare", "HEAD", "fan10", "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + 30
        while not (started := list(filter(_is_serving, psutil.Process(process.pid).children()))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 143
    assert not psutil.wait_procs(started, 5)[1]
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in git(ROOT, "worktree", "list")


def _is_serving(process: psutil.Process) -> bool:
    """Whether it is a gateway that listens."""
    try:
        return bool(process.net_connections("tcp"))
    except psutil.Error:  # git, which is gone
        return False


def test_an_unknown_commit_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["nowhere"]) == 1
    assert "nowhere is no commit" in capsys.readouterr().err
