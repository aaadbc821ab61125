"""The `trellis` command: against a real gateway in a process of its own, and alone where it needs none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from gateway.cli import app
from gateway.commands.common import table, visible
from gateway.welcome import lines_to_try, prefix, reachable
from tests.gateway.commands.program import SECONDS, Run, clean, process, trellis
from tests.ports import reserved_port
from tests.server import Server
from tests.waiting import until

# Every command


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


GROUP = typer.main.get_group(app)
ALL = list(commands(GROUP))  # type: ignore[arg-type]  # a group in fact, by a vendored name


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output
    described = result.output.split("\n\n")[1]
    assert described.strip().rstrip().endswith((".", "Commands:")), "a whole sentence says what it does"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["publish"],
        ["serve", "--nonsense"],
        ["serve", "--port", "many"],
        ["direct", "lobby", "someone", "hi"],
        ["tail", "lobby", "--after", "-1"],
        ["key", "add", "ada", "--allow", "shout:*"],
        ["import", "/nonexistent"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    done = trellis(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Usage: ")


def test_the_version_is_that_of_the_distribution() -> None:
    assert process("--version").stdout == f"trellis {version('trellis-gateway')}\n"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["publsh", "lobby"], "'publish'"),
        (["key", "ad", "ada"], "'add'"),
        (["tail", "lobby", "--aftr", "1"], "--after"),
    ],
    ids=" ".join,
)
def test_a_mistyped_word_is_answered_with_a_suggestion(arguments: list[str], meant: str) -> None:
    done = trellis(*arguments)
    assert done.returncode == 2
    assert meant in done.stderr


@pytest.mark.parametrize(("words", "offered"), [("trellis key ro", "rotate"), ("trellis tail --af", "--after")])
def test_the_shell_completes_commands_and_options(words: str, offered: str) -> None:
    environment = {"_TRELLIS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = Path(sys.executable).with_name("trellis")
    done = subprocess.run(
        [program], capture_output=True, text=True, timeout=SECONDS, env=clean(environment), check=False
    )
    assert done.stdout.split() == [offered]


def test_an_unusable_file_is_reported_without_a_traceback(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    done = process("key", "list", "--data", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"trellis: {file}/keys/api-keys.json: Not a directory\n"


# A gateway that cannot be talked to


def test_the_error_without_a_gateway_names_trellis_serve() -> None:
    port = reserved_port()
    for arguments in (["publish", "lobby", "hi"], ["tail", "lobby"], ["channels"], ["peers", "7"]):
        done = process(*arguments, "--gateway", f"127.0.0.1:{port}")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"no gateway at http://127.0.0.1:{port}" in done.stderr
        assert "trellis serve" in done.stderr


@pytest.mark.parametrize(
    ("scheme", "path", "advice"),
    [("https", "", "try http:// in place of https://"), ("http", "/v1", "leave out /v1"), ("ws", "", "try http://")],
)
def test_an_address_that_is_nearly_right_is_corrected(server: Server, scheme: str, path: str, advice: str) -> None:
    done = trellis("channels", "--gateway", f"{scheme}://{server.http}{path}")
    assert (done.returncode, done.stdout) == (1, "")
    assert advice in done.stderr


@pytest.mark.parametrize("url", ["http://[", "http://nowhere.invalid", "ftp://127.0.0.1", "http://127.0.0.1:99999", ""])
def test_an_invalid_address_is_reported_without_a_traceback(url: str) -> None:
    done = trellis("channels", "--gateway", url)
    assert done.returncode == 1
    assert done.stderr.startswith("trellis: ")
    assert "Traceback" not in done.stderr


def test_an_answer_of_another_server_is_reported() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        done = trellis("channels", "--gateway", f"http://127.0.0.1:{other.server_port}")
        thread.join(SECONDS)
    assert done.returncode == 1
    assert "/v1/channels?limit=256 of a Trellis gateway?" in done.stderr


# Serve


def test_an_address_that_cannot_be_bound_is_reported(server: Server, tmp_path: Path) -> None:
    port = server.http.rpartition(":")[2]
    done = process("serve", "--port", port, "--data", str(tmp_path))
    assert done.returncode == 1
    assert "choose another with --port" in done.stderr
    done = process("serve", "--port", "0", "--sprout-port", server.sprout.rpartition(":")[2], "--data", str(tmp_path))
    assert done.returncode == 1
    assert "choose another with --sprout-port" in done.stderr
    done = process("serve", "--port", "0", "--host", "192.0.2.1", "--data", str(tmp_path))  # RFC 5737: nobody's
    assert done.stderr == (
        "trellis: cannot listen on 192.0.2.1:0 (Cannot assign requested address); choose another with --host\n"
    )
    assert "Traceback" not in done.stderr


def test_the_lines_that_serve_prints_work(server: Server, run: Run) -> None:
    lines = lines_to_try(server.http, f"{Path(sys.executable).parent}/")
    printed = [line.strip() for line in server.log.splitlines()]
    for line in lines_to_try(server.http, ""):
        assert line in printed
    listen, *speak = lines
    with subprocess.Popen(listen, shell=True, stdout=-1, stderr=-1, env=clean({}), start_new_session=True) as tail:
        assert tail.stdout is not None
        until(lambda: run("peers", "lobby", "--json").stdout.strip() not in ("[]", ""))
        for line in speak:
            subprocess.run(line, shell=True, check=True, capture_output=True, timeout=SECONDS, env=clean({}))
        heard = [tail.stdout.readline().decode() for _ in speak]
        os.killpg(tail.pid, signal.SIGINT)
    assert [line.split(": ")[1].strip() for line in heard] == ["hello from REST", "hello from the topic relay"]


def test_json_logs_have_only_json_lines(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--log-format", "json") as server:
        assert server.stop() == 0
    assert all(json.loads(line) for line in server.log.splitlines())


# Small things


def test_suggested_commands_match_how_the_program_was_started() -> None:
    assert prefix(".venv/bin/trellis") == ".venv/bin/"
    assert prefix("trellis") == prefix("/somewhere/gateway/__main__.py") == ""
    assert reachable("0.0.0.0:8080") == "127.0.0.1:8080"
    assert "--gateway" not in "".join(lines_to_try()[:2])
    assert lines_to_try("127.0.0.1:1", tls=True)[0].endswith("--gateway https://127.0.0.1:1")


def test_tables_and_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert table([("A", "BB"), ("long", "x")]) == "A     BB\nlong  x"
    assert visible("héllo \x07\t日本") == r"héllo \x07\t日本"
