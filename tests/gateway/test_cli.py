"""The `trellis` command: against a real gateway in a process of its own, and alone where it needs none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click
import httpx
import pytest
import typer
from pydantic import BaseModel, SecretStr
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from adapters import ADAPTERS
from gateway import cli
from gateway.access.auth import KeyFile
from gateway.access.secretfile import SecretFileError
from gateway.backup.errors import BackupError
from gateway.cli import app
from gateway.client.bulk import LINES
from gateway.client.transport import path_of
from gateway.clients import SproutClient
from gateway.commands.arbor_author import ArborAuthor
from gateway.commands.common import table, visible
from gateway.commands.operate import toml_lines
from gateway.config import load
from gateway.core.errors import OperatorError
from gateway.core.message import Message
from gateway.data_lock import DataDirectoryInUse
from gateway.service import CannotStart
from gateway.storage.record import decode, encode
from gateway.welcome import lines_to_try, prefix, reachable
from tests.ports import reserved_port
from tests.server import Server
from tests.waiting import until

SECONDS = 30
COMMAND = (sys.executable, "-m", "gateway")


Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def trellis(*arguments: str, stdin: str = "", **environment: str) -> Done:
    """Run the command in this process, which is quicker; its environment is nothing but what is given."""
    ours: dict[str, str | None] = {name: None for name in os.environ if name.startswith("TRELLIS_")}
    result = CliRunner().invoke(app, arguments, input=stdin, env=ours | environment)
    if isinstance(result.exception, OperatorError):
        return Done(arguments, 1, result.stdout, f"{result.stderr}trellis: {result.exception}\n")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return Done(arguments, result.exit_code, result.stdout, result.stderr)


def process(*arguments: str, stdin: str = "", **environment: str) -> Done:
    """Run the command as people do."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=clean(environment),
        check=False,
    )


def clean(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")} | more


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("cli") / "data") as server:
        yield server


@pytest.fixture
def run(server: Server) -> Run:
    """`trellis` that talks to the server."""
    return lambda *arguments, **more: trellis(*arguments, TRELLIS_URL=f"http://{server.http}", **more)


class Tail:
    """A running `trellis tail`: its lines as they come, and what it says to people."""

    def __init__(self, *arguments: str, url: str) -> None:
        command = [*COMMAND, "tail", *arguments, "--gateway", url]
        self.process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=clean({}))
        self.lines: SimpleQueue[str] = SimpleQueue()
        self.said: SimpleQueue[str] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.said))
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, file: Any, lines: SimpleQueue[str]) -> None:
        for line in file:
            lines.put(line.rstrip("\n"))

    def next(self) -> str:
        return self.lines.get(timeout=SECONDS)

    def until(self, said: str) -> None:
        while said not in self.said.get(timeout=SECONDS):
            pass


@contextmanager
def tailing(*arguments: str, url: str) -> Iterator[Tail]:
    tail = Tail(*arguments, url=url)
    try:
        yield tail
    finally:
        tail.process.send_signal(signal.SIGINT)
        assert tail.process.wait(SECONDS) == 0, "Ctrl-C is the way to end it"
        for thread in tail._threads:
            thread.join(SECONDS)
        for file in (tail.process.stdout, tail.process.stderr):
            assert file is not None
            file.close()


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
def test_wrong_usage_is_2(arguments: list[str]) -> None:
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
def test_a_mistyped_word_is_answered_with_the_word_that_was_meant(arguments: list[str], meant: str) -> None:
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


def test_a_file_that_cannot_be_used_is_no_traceback(tmp_path: Path) -> None:
    (file := tmp_path / "file").touch()
    done = process("key", "list", "--data", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"trellis: {file}/keys/api-keys.json: Not a directory\n"


# A gateway that cannot be talked to


def test_without_a_gateway_the_error_says_how_to_get_one() -> None:
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
def test_no_address_is_a_traceback(url: str) -> None:
    done = trellis("channels", "--gateway", url)
    assert done.returncode == 1
    assert done.stderr.startswith("trellis: ")
    assert "Traceback" not in done.stderr


def test_something_else_than_a_gateway_is_said_to_be() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        done = trellis("channels", "--gateway", f"http://127.0.0.1:{other.server_port}")
        thread.join(SECONDS)
    assert done.returncode == 1
    assert "/v1/channels?limit=256 of a Trellis gateway?" in done.stderr


# Publish


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ("hello there", {"content": "hello there"}),
        ('{"n": 1.10}', {"n": 1.1}),
        ("42", 42),
        ('"text"', "text"),
        ("", {"content": ""}),
        ("[1, 2", {"content": "[1, 2"}),
    ],
)
def test_content_is_json_or_text(run: Run, server: Server, given: str, content: Any) -> None:
    done = run("publish", "a/channel .. %", given, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["channel"] == "a/channel .. %"
    message = httpx.get(f"http://{server.http}{path_of('a/channel .. %', 'messages', result['id'])}").json()
    assert message["content"] == content


def test_a_channel_called_like_a_folder_is_no_way_up(run: Run) -> None:
    assert json.loads(run("publish", "..", "hi", "--json").stdout)["channel"] == ".."


def test_an_idempotency_key_publishes_once(run: Run) -> None:
    once, twice = (run("publish", "once", "hi", "--idempotency-key", "k").stdout for _ in range(2))
    assert once == twice
    other = run("publish", "once", "something else", "--idempotency-key", "k")
    assert (other.returncode, other.stdout) == (1, "")
    assert "422" in other.stderr


def test_lines_are_answered_each_in_order(run: Run) -> None:
    lines = '{"n": 1}\n\n' + '"' + "x" * (1 << 20) + '"' + '\n"last one without an end"'
    done = run("publish", "lines", "-", "--json", stdin=lines)
    first, bad, last = map(json.loads, done.stdout.splitlines())
    assert last["sequence"] > first["sequence"]
    assert (bad["status"], bad["line"]) == (413, 2)
    assert done.returncode == 1
    assert "not every line" in done.stderr
    plain = run("publish", "lines", stdin=lines)
    assert [len(line.split()) for line in plain.stdout.splitlines()] == [2, 2], "a sequence and an id"
    assert "line 2: 413: " in plain.stderr


def test_a_line_that_is_not_json_is_a_json_string(run: Run, server: Server) -> None:
    assert run("publish", "texts", stdin='hello\n{"n": 1.10}\n  two words \r\n[1, 2\n').returncode == 0
    page = httpx.get(f"http://{server.http}/v1/channels/texts/messages").text
    said = [message["content"] for message in json.loads(page)["messages"]]
    assert said == ["hello", {"n": 1.1}, "two words", "[1, 2"]
    assert '{"n": 1.10}' in page, "JSON is sent as it is"


def test_many_lines_and_their_repetition(run: Run, server: Server) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(3 * LINES + 5))
    plain = run("publish", "many", "--json", stdin=lines)
    assert plain.returncode == 0
    sequences = [json.loads(line)["sequence"] for line in plain.stdout.splitlines()]
    assert len(sequences) == 3 * LINES + 5
    assert sequences == sorted(sequences)
    keyed = [run("publish", "many", "--json", "--idempotency-key", "k", stdin=lines).stdout for _ in range(2)]
    assert keyed[0] == keyed[1] != plain.stdout
    page = httpx.get(f"http://{server.http}/v1/channels/many/messages?order=desc&limit=1").json()
    assert page["messages"][0]["sequence"] == json.loads(keyed[0].splitlines()[-1])["sequence"]


def test_a_line_is_published_before_the_next_one_is_there(server: Server) -> None:
    command = [*COMMAND, "publish", "typed", "--json", "--gateway", server.http]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=clean({})) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(2):
            process.stdin.write(b"%d\n" % n)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["sequence"]
        process.stdin.close()
        assert process.wait(SECONDS) == 0


# Who is there


def test_channels_and_peers(run: Run, server: Server) -> None:
    run("publish", "listed", "hi")
    with tailing("listed", url=server.http) as tail:
        tail.until("listening to listed")
        listing = run("channels").stdout
        assert any(line.split()[:2] == ["listed", "1"] for line in listing.splitlines())
        assert {"name": "listed", "members": 1}.items() <= json.loads(
            run("channels", "listed", "--json").stdout
        ).items()
        assert run("channels", "listed").stdout.startswith("name")
        (peer,) = json.loads(run("peers", "listed", "--json").stdout)
        assert run("peers", "listed").stdout.splitlines()[1].split() == [str(peer["number"]), "rest", "-", "-"]
        assert json.loads(run("peers", str(peer["number"]), "--json").stdout)["connections"] == 1
        assert run("peers", str(peer["number"])).stdout.startswith("number")
        done = run("direct", "listed", str(peer["number"]), "psst", "--json")
        assert json.loads(done.stdout)["delivered"] == 1
        assert "psst  (only to you)" in tail.next()
    gone = run("direct", "listed", str(peer["number"]), "psst")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "404: " in gone.stderr
    assert run("channels", "no such").returncode == 1


def test_more_channels_than_a_page(run: Run, server: Server) -> None:
    with httpx.Client(base_url=f"http://{server.http}") as client:
        for n in range(260):
            client.put(f"/v1/channels/page-{n}").raise_for_status()
    names = {row["name"] for row in json.loads(run("channels", "--json").stdout)}
    assert {f"page-{n}" for n in range(260)} <= names


# Tail


def test_tail_shows_messages_of_people_and_of_programs(run: Run, server: Server) -> None:
    with tailing("shown", url=server.http) as plain, tailing("shown", "--json", url=server.http) as as_json:
        plain.until("listening to shown")
        while len(json.loads(run("peers", "shown", "--json").stdout)) < 2:
            pass
        run("publish", "shown", "two\nlines \x1b[31m \u202e")
        assert plain.next().endswith(r": two\nlines \x1b[31m \u202e"), "a peer does not steer the terminal"
        assert json.loads(as_json.next())["content"] == {"content": "two\nlines \x1b[31m \u202e"}
        run("publish", "shown", '{"a": [1, "\u2028"]}')
        assert re.search(r'peer \d+ \(rest\): {"a": \[1, "\\u2028"\]}$', plain.next())
        assert json.loads(as_json.next())["content"] == {"a": [1, "\u2028"]}


def test_tail_begins_where_it_is_told_to(run: Run, server: Server) -> None:
    sequences = [json.loads(run("publish", "replayed", str(n), "--json").stdout)["sequence"] for n in range(3)]
    with tailing("replayed", "--after", str(sequences[0]), "--json", url=server.http) as tail:
        assert [json.loads(tail.next())["sequence"] for _ in range(2)] == sequences[1:]


def test_tail_outlives_the_gateway_and_misses_nothing(tmp_path: Path) -> None:
    port = str(reserved_port())
    first = Server(tmp_path / "data", "--port", port)
    trellis("publish", "kept", "before", TRELLIS_URL=first.http)
    with tailing("kept", "--json", url=first.http) as tail:
        while not json.loads(trellis("peers", "kept", "--json", TRELLIS_URL=first.http).stdout):
            pass
        first.kill()
        tail.until("connecting again")
        with Server(tmp_path / "data", "--port", port) as second:
            trellis("publish", "kept", "while away", TRELLIS_URL=second.http)
            assert json.loads(tail.next())["content"] == {"content": "while away"}
            trellis("publish", "kept", "again", TRELLIS_URL=second.http)
            assert json.loads(tail.next())["content"] == {"content": "again"}
            assert tail.lines.empty()


# Keys


def test_keys_are_added_listed_and_removed(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    added = trellis("key", "add", "ada", *data)
    assert added.returncode == 0
    assert added.stdout.startswith("trellis_")
    assert "from now on every request needs a key" in added.stderr
    more = trellis("key", "add", "bob", "--allow", "subscribe:news/*", "--allow", "history:*", *data)
    assert more.stdout != added.stdout
    listed = trellis("key", "list", *data).stdout
    name, _, *rest = listed.splitlines()[2].split()
    assert [name, *rest] == ["bob", "never", "never", "subscribe:news/*", "history:*"]
    assert added.stdout.strip() not in listed
    shown = json.loads(trellis("key", "list", "--json", *data).stdout)
    assert [(row["name"], row["lastUsed"], row["rights"]) for row in shown][1:] == [("bob", None, rest[2:])]
    assert stat.S_IMODE((tmp_path / "data/keys/api-keys.json").stat().st_mode) == 0o600
    again = trellis("key", "add", "ada", *data)
    assert (again.returncode, again.stdout) == (1, "")
    assert trellis("key", "remove", "ada", *data).returncode == 0
    gone = trellis("key", "remove", "ada", *data)
    assert gone.returncode == 1
    assert "no key called 'ada'" in gone.stderr


def test_a_key_is_limited_in_time_and_rights_and_rotated(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    first = trellis("key", "add", "ada", "--expires", "30d", "--admin", "--deny", "publish:secret/*", *data).stdout
    second = trellis("key", "rotate", "ada", "--overlap", "7d", *data)
    assert second.stdout.startswith("trellis_")
    assert second.stdout != first
    _, old, new = trellis("key", "list", *data).stdout.splitlines()
    for line in (old, new):
        assert line.endswith("subscribe:* publish:* direct:* history:* admin:* !publish:secret/*")
        assert "never" in line, "last used"
    days = [datetime.fromisoformat(line.split()[2]) - datetime.now() for line in (old, new)]
    assert 6 <= days[0].days <= 7
    assert 28 <= days[1].days <= 30
    for wrong in ("soon", "1", "-1h", "0x1d", "999999999d"):
        assert trellis("key", "add", "bob", "--expires", wrong, *data).returncode == 2
    assert trellis("key", "rotate", "nobody", *data).returncode == 1


def test_the_list_tells_when_a_key_was_last_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = KeyFile(data / "keys/api-keys.json").add("ada")
    with Server(data) as server:
        assert trellis("channels", "--key", key, TRELLIS_URL=f"http://{server.http}").returncode == 0
    _, line = trellis("key", "list", "--data", str(data)).stdout.splitlines()
    used = datetime.fromisoformat(line.split()[3])
    assert abs((datetime.now(UTC).replace(tzinfo=None) - used).days) <= 1
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (data / "keys").iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_a_running_gateway_notices_keys(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        here = {"TRELLIS_URL": f"http://{server.http}"}
        assert trellis("publish", "lobby", "hi", **here).returncode == 0
        key = trellis("key", "add", "ada", "--data", str(server.data)).stdout.strip()
        until(lambda: trellis("publish", "lobby", "hi", **here).returncode == 1)
        refused = trellis("publish", "lobby", "hi", **here)
        assert "401: " in refused.stderr
        assert "--key or TRELLIS_KEY" in refused.stderr
        partly = trellis("status", **here)
        assert partly.returncode == 0
        assert ": ready\n" in partly.stdout
        assert "without a key; give a key with --key or TRELLIS_KEY" in partly.stdout
        assert "up  " in trellis("status", "--key", key, **here).stdout
        assert process("publish", "lobby", "hi", **here, TRELLIS_KEY=key).returncode == 0
        assert trellis("publish", "lobby", "hi", "--key", key, **here).returncode == 0
        trellis("key", "remove", "ada", "--data", str(server.data))
        until(lambda: trellis("channels", "--key", key, **here).returncode == 1)
        assert trellis("publish", "lobby", "hi", **here).returncode == 1, "no key does not mean no lock"
        (server.data / "keys/api-keys.json").write_text("[{]")
        until(lambda: "the key file cannot be read" in server.log)
        assert trellis("publish", "lobby", "hi", **here).returncode == 1
        assert key not in server.log


def test_a_removed_key_hears_nothing_more(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        data = ("--data", str(server.data))
        kept, lost = (trellis("key", "add", name, *data).stdout.strip() for name in ("kept", "lost"))
        url = f"ws://{server.http}/relay?key="
        until(lambda: "read again" in server.log)
        with connect(url + kept) as one, connect(url + lost) as other:
            for socket in (one, other):
                socket.send('{"type":2,"topic":"lobby"}')
                assert "error" not in json.loads(socket.recv(SECONDS))
            trellis("key", "remove", "lost", *data)
            with pytest.raises(ConnectionClosedError, match="1008"):
                list(other)
            one.send('{"type":1,"topic":"still here"}')
            while "still here" not in str(one.recv(SECONDS)):
                pass


# Configuration


def test_check_config_prints_what_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "trellis.toml"
    file.write_text(
        '[auth.grants]\n"sprout:anonymous" = ["subscribe:*"]\n[channels]\nnames = ["news", "weather/berlin"]\n'
    )
    done = trellis("check-config", "--config", str(file), TRELLIS_SPROUT__PORT="7000")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# ok\n")
    assert "sprout.port = 7000\n" in done.stdout
    again = tmp_path / "again.toml"
    again.write_text(done.stdout)
    assert trellis("check-config", "--config", str(again)).stdout == done.stdout
    assert json.loads(trellis("check-config", "--config", str(again), "--json").stdout)["sprout"]["port"] == 7000


def test_check_config_names_every_fault_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "trellis.toml"
    file.write_text('port = "x"\nnonsense = 1\n[channels]\ncreate = "never"\n')
    done = trellis("check-config", "--config", str(file), TRELLIS_SPROUT__PORT="many", TRELLIS_NO_SUCH="1")
    assert (done.returncode, done.stdout) == (2, "")
    for key in ("port", "nonsense", "channels.create", "sprout.port", "TRELLIS_NO_SUCH"):
        assert f"configuration: {key}: " in done.stderr
    assert trellis("check-config", "--config", str(tmp_path / "none")).returncode == 2


def test_secrets_are_stars() -> None:
    class Section(BaseModel):
        password: SecretStr = SecretStr("hunter2")
        unset: int | None = None

    assert list(toml_lines({"section": Section().model_dump(mode="json")})) == [
        'section.password = "**********"',
        "# section.unset =",
    ]


def test_variables_of_the_commands_are_no_faults_of_serve() -> None:
    done = trellis("check-config", TRELLIS_URL="http://127.0.0.1:1", TRELLIS_KEY="x")
    assert done.returncode == 0
    assert "TRELLIS" not in done.stdout


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", ["log", "index.sqlite"])
def test_data_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path, loop: str, name: str) -> None:
    (tmp_path / name).mkdir() if name == "index.sqlite" else (tmp_path / name).touch()
    done = process("serve", "--port", "0", "--sprout-port", "0", "--data", str(tmp_path), "--loop", loop)
    assert (done.returncode, done.stdout) == (1, ""), "it is not ready, and does not say so"
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"trellis: {tmp_path} cannot be used: ")


# The log


def test_a_log_is_verified_exported_and_imported(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        for n in range(5):
            trellis("publish", "lobby", str(n), TRELLIS_URL=server.http)
        assert trellis("verify", "--data", str(server.data)).returncode == 0, "while the gateway runs"
        busy = trellis("import", __file__, "--data", str(server.data))
        assert busy.returncode == 1
        assert "in use by another gateway" in busy.stderr
    verified = trellis("verify", "--data", str(server.data))
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.endswith("faults: 0\n")
    assert json.loads(trellis("verify", "--json", "--data", str(server.data)).stdout)["faults"] == []
    file, copy = tmp_path / "export.jsonl", str(tmp_path / "copy")
    assert trellis("export", "--data", str(server.data), "-o", str(file)).returncode == 0
    assert trellis("import", str(file), "--data", copy).returncode == 0
    assert process("export", "--data", copy).stdout == file.read_text()
    part = trellis("export", "--data", copy, "--after", "2", "--until", "4").stdout
    assert [json.loads(line)["seq"] for line in part.splitlines()] == [3, 4]
    repeated = trellis("import", str(file), "--data", copy)
    assert repeated.stdout.startswith("0 records imported")
    with Server(Path(copy), "--adopt") as server:
        messages = httpx.get(f"http://{server.http}/v1/channels/lobby/messages").json()["messages"]
    assert [message["content"] for message in messages] == [0, 1, 2, 3, 4]


def test_the_warehouse_has_one_default() -> None:
    """The setting, the command and `make pipeline` have the same, so `GET /v1/stats` finds what is written."""
    default = str(load(ADAPTERS).warehouse)
    (option,) = (each for each in typer.main.get_command(app).commands["pipeline"].params if each.name == "warehouse")  # type: ignore[attr-defined]
    assert (option.default, option.envvar) == (default, "TRELLIS_WAREHOUSE")
    root = Path(__file__).parents[2]
    recipe = re.search(r"^pipeline: .*\n\t(.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "--warehouse" not in recipe[1]
    assert f"/{default}/" in (root / ".gitignore").read_text().splitlines()


def test_what_peers_signed_is_verified_too(tmp_path: Path) -> None:
    async def say(server: Server) -> None:
        async with SproutClient(server.http, server.sprout, ArborAuthor("ada")) as ada:
            await ada.say("signed", {"content": "genuine"})

    with Server(tmp_path / "data") as server:
        asyncio.run(say(server))
    data = ("--data", str(server.data))
    assert trellis("verify", *data).stdout.endswith("faults: 0\n")
    (segment,) = (server.data / "log").glob("*.jsonl")
    entries = [decode(line) for line in segment.read_bytes().splitlines(keepends=True)]
    (message,) = (entry for entry in entries if isinstance(entry, Message))
    assert message.wire is not None
    message.wire = message.wire[:-3] + (b"AAA" if message.wire[-3:] != b"AAA" else b"BBB")
    segment.write_bytes(b"".join(map(encode, entries)))
    done = trellis("verify", *data)
    assert done.returncode == 1
    assert "not the node of that id" in done.stderr


def test_a_damaged_log_is_a_failure(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        trellis("publish", "lobby", "precious", TRELLIS_URL=server.http)
    (segment,) = (server.data / "log").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b"precious", b"PRECIOUS"))
    for command in ("verify", "export"):
        done = trellis(command, "--data", str(server.data))
        assert done.returncode == 1
        assert f"{segment.name}, byte " in done.stderr
        assert "PRECIOUS" not in done.stdout
        assert ("nothing was changed" in done.stderr) == (command == "verify")
    nothing = trellis("verify", "--data", str(tmp_path / "nothing"))
    assert (nothing.returncode, nothing.stdout) == (1, "")


def test_a_file_that_no_gateway_wrote_is_refused_in_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("hello\n" * 24)
    done = trellis("import", str(tmp_path / "foreign"), "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "trellis: nothing was imported: none of the 24 lines is a record that `trellis export` wrote (the first: torn: "
        "no checksum at its end)"
    ]


# Identities and communities


def test_identities_and_communities(run: Run, server: Server, tmp_path: Path) -> None:
    shown = fields(run("identity", "show", "--data", str(server.data)).stdout)
    made = fields(run("community", "new", "a community").stdout)
    assert fields(run("community", "show", "a community").stdout) == made
    assert json.loads(run("community", "show", "a community", "--json").stdout) == made
    assert json.loads(run("identity", "show", "--json", "--data", str(server.data)).stdout) == shown
    entities = [
        record
        for path in sorted((server.data / "log").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
        if (record := json.loads(line))["kind"] == "entity"
    ]
    natives = {record["native"]["sprout"] for record in entities}
    assert {shown["identity"], made["community"]} <= natives
    assert shown["name"] == f"Trellis {shown['gateway']}"
    assert run("community", "show", "no such").returncode == 1
    assert trellis("identity", "show", "--data", str(tmp_path)).returncode == 1


def fields(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(" ") for line in text.splitlines())}


def test_a_new_identity_is_a_key_and_a_node(tmp_path: Path) -> None:
    done = trellis("identity", "new", "ada", "--folder", str(tmp_path))
    assert done.returncode == 0
    assert stat.S_IMODE((tmp_path / "ada.privkey").stat().st_mode) == 0o600
    assert (tmp_path / done.stdout.strip()).is_file()
    again = trellis("identity", "new", "ada", "--folder", str(tmp_path))
    assert (again.returncode, again.stdout) == (1, "")
    assert trellis("identity", "new", "a/b", "--folder", str(tmp_path)).returncode == 2


@pytest.mark.parametrize("name", ["", "two\nlines", "ü" * 129, "half a character \udcff"])
def test_an_identity_that_no_relay_takes_is_not_made(name: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["identity", "new", name, "--folder", str(tmp_path)]).exit_code == 2
    assert not [*tmp_path.iterdir()]


def test_an_identity_whose_files_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, folder in (("ada", "file"), ("x" * 256, ".")):
        done = CliRunner().invoke(app, ["identity", "new", name, "--folder", str(tmp_path / folder)])
        assert isinstance(done.exception, OperatorError)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", [CannotStart, DataDirectoryInUse, SecretFileError, BackupError])
def test_an_error_for_operators_ends_a_command_with_its_text(
    kind: type[OperatorError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise kind("why it failed")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr().err == "trellis: why it failed\n"


# Serve


def test_a_port_that_is_taken_is_said(server: Server, tmp_path: Path) -> None:
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


def test_json_logs_are_json_alone(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--log-format", "json") as server:
        assert server.stop() == 0
    assert all(json.loads(line) for line in server.log.splitlines())


# Small things


def test_lines_to_try_follow_how_the_program_was_started() -> None:
    assert prefix(".venv/bin/trellis") == ".venv/bin/"
    assert prefix("trellis") == prefix("/somewhere/gateway/__main__.py") == ""
    assert reachable("0.0.0.0:8080") == "127.0.0.1:8080"
    assert "--gateway" not in "".join(lines_to_try()[:2])
    assert lines_to_try("127.0.0.1:1", tls=True)[0].endswith("--gateway https://127.0.0.1:1")


def test_tables_and_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert table([("A", "BB"), ("long", "x")]) == "A     BB\nlong  x"
    assert visible("héllo \x07\t日本") == r"héllo \x07\t日本"
