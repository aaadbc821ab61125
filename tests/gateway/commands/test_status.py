"""`trellis status`, `top`, `links` and `bench` describe a real gateway to people and to programs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.access.keyfile import KeyFile
from gateway.cli import app
from gateway.commands import bench_load, top
from gateway.commands.common import CommandError
from gateway.commands.links import links_table
from gateway.commands.top import Sample, compare, screen
from gateway.commands.units import duration
from tests.server import Server

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("status") / "data", env={"TRELLIS_SPROUT__PEERS": '["127.0.0.1:9"]'}) as server:
        httpx.post(f"http://{server.http}/v1/channels/lobby/messages", json="hello").raise_for_status()
        yield server


@pytest.fixture
def run(server: Server) -> Run:
    def run(*arguments: str, **environment: str) -> Any:
        return CliRunner().invoke(app, arguments, env={"TRELLIS_URL": server.http, "TRELLIS_KEY": None, **environment})

    return run


# Status and links


def test_status_is_one_screen(run: Run, server: Server) -> None:
    done = run("status")
    assert done.exit_code == 0, done.output
    head, *rows = done.stdout.splitlines()
    assert re.fullmatch(rf"Trellis \S+ at http://{server.http}: ready", head)
    found = dict(re.split(r"  +", row, maxsplit=1) for row in rows)
    assert list(found) == ["protocols", "up", "connections", "channels", "messages", "log", "links", "faults"]
    assert "Arbor (0.0), Streamr (control 1, control 2, " in found["protocols"]
    assert found["channels"] == "1; the busiest: lobby"
    assert found["messages"] == "1 published, 0 delivered since the start"
    assert re.fullmatch(r"sequence \d+; .+", found["log"])
    assert found["links"] == "0 of 1 connected; `trellis links` lists them"
    shown = json.loads(run("status", "--json").stdout)
    assert (shown["ready"], shown["statistics"]["channelCount"]) == (True, 1)


def test_status_names_the_right_that_a_key_lacks(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys" / "api-keys.json")
    narrow = file.add("narrow", ("publish:lobby",))
    with Server(tmp_path) as server:

        def more(**environment: str) -> str:
            done = CliRunner().invoke(
                app, ["status"], env={"TRELLIS_URL": server.http, "TRELLIS_KEY": None, **environment}
            )
            (row,) = (row for row in done.stdout.splitlines() if row.startswith("more "))
            return row

        lacking = more(TRELLIS_KEY=narrow)
        assert "use a key with the right `history:*`" in lacking
        assert "TRELLIS_KEY" not in lacking
        assert more().endswith("give a key with --key or TRELLIS_KEY")


def test_links_shows_the_reason_of_a_failed_link(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = time.monotonic() + 30
    while not (link := json.loads(run("links", "--json").stdout)[0])["failures"]:
        assert time.monotonic() < deadline
    assert (link["address"], link["state"]) == ("127.0.0.1:9", "waiting")
    head, row = run("links").stdout.splitlines()
    assert head.split() == ["PROTOCOL", "ADDRESS", "STATE", "FOR", "CONNECTED", "FAILED", "REASON"]
    assert row.endswith("Connection refused")
    monkeypatch.setenv("NO_COLOR", "1")
    link |= {"since": 1_000_000, "state": "connected", "error": None}
    assert re.split("  +", links_table([link], 5_000.0).splitlines()[1])[2:4] == ["connected", "1 h 6 min"]


# Top


def test_top_counts_a_second(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(_seconds: float) -> None:
        httpx.post(f"http://{server.http}/v1/channels/busy/messages", json=1).raise_for_status()
        time.sleep(0.02)

    monkeypatch.setattr(top, "sleep", publish)
    looks = [json.loads(line) for line in run("top", "--count", "2", "--json").stdout.splitlines()]
    assert len(looks) == 2
    for look in looks:
        assert look["channels"][0]["name"] == "busy"
        assert look["channels"][0]["messages"] > 0
        assert look["protocols"]["rest"]["messages"] == look["channels"][0]["messages"]
    text = run("top", "--count", "1").stdout
    assert "\x1b" not in text
    assert re.search(r"^CHANNEL +MESSAGES/S +DELIVERIES/S +LISTENING\nbusy ", text, re.MULTILINE)


def test_top_outlives_a_restart() -> None:
    def stats(uptime: int, messages: int) -> dict[str, Any]:
        counts = {"connections": 1, "channelCount": 1, "sequence": 1, "backlog": {"unsynced": 0, "unindexed": 2}}
        rows = {"protocols": {"rest": {"messages": messages}}, "channels": [], "links": []}
        return {"version": "1", "uptimeSeconds": uptime, **counts, **rows}

    found = [Sample(0, stats(10, 100)), Sample(1, None, "nobody"), Sample(2, stats(1, 5)), Sample(4, stats(3, 25))]
    lost, back, after = compare(iter(found))
    assert lost == {"reachable": False, "reason": "nobody"}
    assert back["protocols"]["rest"]["messages"] is None
    assert after["protocols"]["rest"]["messages"] == 10
    assert "2 records not in the index yet" in screen("here", after)
    assert "nobody" in screen("here", lost)


def test_top_fills_a_terminal_and_ends_with_ctrl_c(server: Server) -> None:
    shown = on_a_terminal("top", "--gateway", server.http, "--interval", "1", until="CHANNEL", interrupt=True)
    assert "\x1b[?1049h" in shown, "the screen is another"
    assert "Trellis " in shown
    assert "\x1b[1m" in shown, "headings are bold"


# Bench


def test_bench_measures_every_way(run: Run, server: Server) -> None:
    done = run("bench", server.http, "--seconds", "0.5", "--rate", "40", "--listeners", "2", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    ways = ["REST to REST", "REST to WebSocket", "WebSocket to REST", "WebSocket to WebSocket"]
    assert [flow["flow"] for flow in found["flows"]] == ["REST, until it is on disk", *ways]
    for flow in found["flows"]:
        assert flow["arrived"] == flow["expected"] >= 5
        times = flow["milliseconds"]
        assert 0 < times["median"] <= times["p99"] <= times["longest"]
    assert (found["refused"], found["leftOut"]) == (0, None)


def test_bench_bounds_its_arguments_and_reports_failures(run: Run) -> None:
    for flag, value in (("--rate", "100000"), ("--listeners", "1000"), ("--seconds", "3600"), ("--size", "1000000")):
        assert run("bench", flag, value).exit_code == 2
    assert run("bench", "--rate", "1000", "--listeners", "50").exit_code == 2
    nobody = run("bench", "http://127.0.0.1:9", "--seconds", "1")
    assert isinstance(nobody.exception, CommandError)
    assert "no gateway at http://127.0.0.1:9" in str(nobody.exception)


def test_bench_ends_early_if_the_gateway_does_not_keep_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_load, "BEHIND_SECONDS", 0)  # one message may be under way, and no other
    done = run("bench", "--seconds", "10", "--rate", "1000", "--listeners", "2")
    assert "the load by REST and WebSocket ended early" in str(done.exception)
    assert "WebSocket to REST" in done.stdout


# Terminals


def on_a_terminal(*arguments: str, until: str, interrupt: bool = False, **environment: str) -> str:
    """What the command writes to a terminal, with Ctrl-C once it has said something."""
    main, terminal = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=env | {"TERM": "xterm-256color"} | environment,
    )
    os.close(terminal)
    text = b""
    try:
        while select.select([main], [], [], 30)[0]:
            try:
                text += os.read(main, 65_536)
            except OSError:  # nobody has the terminal open any more
                break
            if interrupt and until.encode() in text:
                process.send_signal(signal.SIGINT)
                interrupt = False  # a second one could reach it while it ends
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert until.encode() in text, text
    return text.decode()


def test_colours_are_not_for_terminals_that_want_none(server: Server, run: Run) -> None:
    assert "\x1b[" not in on_a_terminal("status", "--gateway", server.http, until="ready", NO_COLOR="1")
    assert "\x1b" not in run("status").stdout


def test_times_are_in_two_units() -> None:
    assert [duration(seconds) for seconds in (0, 59.9, 60, 3_661, 90_000, -5)] == [
        *("0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h", "0 s"),
    ]
