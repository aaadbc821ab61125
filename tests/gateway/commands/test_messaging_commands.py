"""`trellis publish`, `tail`, `channels` and `peers`: messages, from the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest

from gateway.client.bulk import LINES
from gateway.client.transport import path_of
from tests.gateway.commands.program import COMMAND, SECONDS, Run, clean, trellis
from tests.ports import reserved_port
from tests.server import Server


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


def test_a_channel_named_dot_dot_is_published_to(run: Run) -> None:
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


def test_many_lines_are_published_in_order_and_once_with_a_key(run: Run, server: Server) -> None:
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


def test_tail_begins_after_the_given_sequence(run: Run, server: Server) -> None:
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
