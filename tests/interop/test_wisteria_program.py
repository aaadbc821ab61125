"""wisteria, Arbor's terminal client, exchanges messages in a terminal of its own, and stays connected.

It cannot be fetched with the other clients, so who has it says where it is: WISTERIA=/path/to/wisteria.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from adapters.sprout.forest import twig
from tests.adapters.sprout.conftest import Forge
from tests.forests import digest_of, is_odd, make_crowd, write_forest
from tests.server import Server

from .test_arbor_relay import secure, trellis

PROGRAM = os.environ.get("WISTERIA", "")
SECONDS = 20.0
MANY_SECONDS = 150.0  # for ten thousand nodes
# It also reads files of its grove that it has not written yet, and complains, and reads them again.
FAILED = re.compile(r"(?i)^.*(?:couldn't|failed (?!parsing)|validat|timed out|panic).*$", re.MULTILINE)
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\([A-Z0-9]|[=>])")

pytestmark = pytest.mark.skipif(not PROGRAM, reason="WISTERIA does not say where wisteria is")


class Terminal:
    """wisteria, connected to the relays at *addresses*; what it keeps is below *home*."""

    def __init__(self, home: Path, *addresses: str) -> None:
        self.home, self.grove = home, home / "grove"
        if not self.grove.exists():
            trellis("identity", "new", "wisteria", "--folder", str(self.grove))
            (key,) = self.grove.glob("*.privkey")
            (identity,) = (path.name for path in self.grove.iterdir() if path.name.startswith("SHA512"))
            (home / "keys").mkdir()
            key.rename(home / "keys" / f"{identity}.key")
            config = {"PGPUser": "x", "UseGPG": "false", "IdentityID": identity, "EditorCmd": ["true", "{}"]}
            (home / "config.json").write_text(json.dumps(config | {"RuntimeDirectory": str(home)}))
        arguments = ["-insecure", "-nogpg", "-config", str(home / "config.json"), "-grove", str(self.grove)]
        self._text = ""
        self._read_nodes: set[Path] = set()
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            where = {"HOME": str(home), "TMPDIR": str(home), "TERM": "xterm"}
            os.execve(PROGRAM, [PROGRAM, *arguments, *addresses], {**os.environ, **where})
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 120, 0, 0))
        Thread(target=self._read, daemon=True).start()
        self.shows("passphrase")
        self.type("none\r")
        self.shows("wisteria")

    def _read(self) -> None:
        try:
            while data := os.read(self._terminal, 1 << 16):
                self._text += ESCAPE.sub(" ", data.decode(errors="replace"))
        except OSError:
            pass  # it has ended

    def shows(self, word: str) -> None:
        """Wait until it has shown a *word*."""
        until(lambda: word in self._text, lambda: (word, self._text[-2000:], self.log))

    def holds(self, word: str) -> None:
        """Wait until a node in its grove has a *word*; it shows only as much as there is room for."""

        def found() -> bool:
            new = [path for path in self.grove.iterdir() if path not in self._read_nodes]
            holding = [path for path in new if word.encode() in path.read_bytes()]
            self._read_nodes.update(new if not holding else ())
            return bool(holding)

        until(found, lambda: (word, self.log[-2000:]))

    def rests(self) -> None:
        """Wait until it has looked at all that it wrote into its grove."""
        lengths = [0]

        def quiet() -> bool:
            time.sleep(1)
            lengths.append(len(self.log))
            return lengths[-1] == lengths[-2]

        until(quiet, lambda: lengths, MANY_SECONDS)

    def type(self, keys: str) -> None:
        """Press *keys*."""
        os.write(self._terminal, keys.encode())

    def answer(self, text: str, pause: float = 0.2) -> None:
        """Answer the last line with *text*; *pause* is the seconds that it needs to draw all that it holds."""
        for keys in ("G", "\r", text, "\r"):
            self.type(keys)
            time.sleep(pause)  # it draws an editor, or takes it away

    @property
    def log(self) -> str:
        """What it wrote to its log."""
        return "".join(path.read_text() for path in self.home.glob("arbor*/viewer.log"))

    def end(self) -> None:
        """End it; it must have been there until now."""
        try:
            assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), "it has ended by itself"
        finally:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._terminal)


@contextmanager
def wisteria(home: Path, *addresses: str) -> Iterator[Terminal]:
    """wisteria, which must have nothing to complain about in the end."""
    home.mkdir(exist_ok=True)
    terminal = Terminal(home, *addresses)
    try:
        yield terminal
        assert not FAILED.findall(terminal.log)
    finally:
        terminal.end()


def until(true: Any, told: Any = lambda: None, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, told()
        time.sleep(0.05)


def announce(server: Server, *nodes: str) -> None:
    """Announce *nodes*, each on a line; they are on disk then."""
    host, _, port = server.sprout.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as line:
        line.sendall("\n".join((f"announce 1 {len(nodes)}", *nodes, "")).encode())
        with line.makefile() as told:
            assert next(text for text in told if text.startswith("status")) == "status 1 0\n"


def test_wisteria_exchanges_messages_over_two_gateways_and_stays_connected(tmp_path: Path) -> None:
    """Something in its community has expired, and somebody comes and goes of whom it is not to be told."""
    author = Forge()
    flags = secure(tmp_path / "certs")
    with Server(tmp_path / "first", *flags) as first:
        author.now = int(time.time() * 1000)
        woods, end = author.community("woods"), datetime.now(UTC) + timedelta(seconds=1)
        short = author.reply(woods, "short", twig.encode({"expiration/1": f"{end:%Y-%m-%dT%H:%M:%S.%fZ}".encode()}))
        nodes = [author.identity, woods, short, author.reply(short, "below"), author.reply(woods, "said-before")]
        announce(first, *nodes)
        env = {"TRELLIS_SPROUT__PEERS": json.dumps([f"tcp://{first.sprout}"])}
        with Server(tmp_path / "second", env=env) as second, httpx.Client(verify=False, timeout=SECONDS) as http:
            at = f"https://{first.http}", f"http://{second.http}"
            here, there = (f"{origin}/v1/channels/woods/messages" for origin in at)
            until(lambda: http.get(there).status_code == 200)
            time.sleep(max(0, (end - datetime.now(UTC)).total_seconds()))
            with (
                wisteria(tmp_path / "home", first.ready["sprout_tls"]) as client,
                connect(f"ws://{second.http}/relay") as idle,
            ):
                client.shows("said-before")
                idle.send('{"type":2,"topic":"woods"}')
                asked = http.post(there, json={"content": "said-there"}).json()["id"]
                client.shows("said-there")
                client.answer("said-by-wisteria")
                until(lambda: b"said-by-wisteria" in http.get(there).content)
                answer = http.get(there).json()["messages"][-1]
                assert answer["content"] == {"content": "said-by-wisteria", "inReplyTo": asked}
                assert answer["sender"]["name"] == "wisteria"
                http.post(here, json={"content": "said-later", "inReplyTo": answer["id"]}).raise_for_status()
                client.shows("said-later")
                time.sleep(1.5)  # presence is told after a second
                kept = b"".join(path.read_bytes() for path in client.grove.iterdir())
                assert b"activity" not in kept
                assert b"below" not in kept
            for server in (second, first):
                assert "Traceback" not in server.log


def test_wisteria_synchronizes_with_a_retired_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_LOG__SEGMENT_BYTES", "16384")
    write_forest(tmp_path / "forest", "old", 600, communities=1)
    trellis("import", "--grove", str(tmp_path / "forest"), "--data", str(tmp_path / "data"))
    flags = secure(tmp_path / "certs")
    with Server(tmp_path / "data", *flags, env={"TRELLIS_LOG__KEEP_BYTES": "400000"}) as server:
        until(lambda: list((tmp_path / "data").rglob("*.facts.jsonl")))  # retention has taken something
        with (
            wisteria(tmp_path / "home", server.ready["sprout_tls"]) as client,
            httpx.Client(verify=False, timeout=SECONDS) as http,
        ):
            until(lambda: "Finished synchronizing" in client.log)
            path = f"https://{server.http}/v1/channels/old community 0/messages"
            http.post(path, json={"content": "said-later"}).raise_for_status()
            until(lambda: any(b"said-later" in file.read_bytes() for file in client.grove.iterdir()))


@pytest.mark.timeout(300)
def test_wisteria_follows_ten_thousand_new_communities_with_any_id(tmp_path: Path) -> None:
    """Its grove is looked at, not its terminal: that is far behind, since it reads the grove anew for each file."""
    identity, communities = make_crowd(10_000)
    ids = {line.partition(" ")[0] for line in communities}
    flags = secure(tmp_path / "certs")
    with (
        Server(tmp_path / "data", *flags) as server,
        httpx.Client(base_url=f"https://{server.http}", verify=False, timeout=SECONDS) as http,
        wisteria(tmp_path / "home", server.ready["sprout_tls"]) as client,
    ):
        for at in range(0, len(communities), 1000):
            announce(server, identity, *communities[at : at + 1000])
        until(lambda: ids <= {path.name for path in client.grove.iterdir()}, seconds=MANY_SECONDS)
        until(lambda: client.log.count("Received leaves_of") == len(ids), seconds=MANY_SECONDS)
        for id in filter(is_odd, ids):
            http.post(channel_of(id), json={"content": f"said in {id}"}).raise_for_status()
            client.holds(f"said in {id}")
        assert server.process.poll() is None
        assert "Traceback" not in server.log


@pytest.mark.timeout(300)
def test_wisteria_lists_the_newest_of_ten_thousand_communities_and_replies(tmp_path: Path) -> None:
    identity, communities = make_crowd(10_000)
    ids = {line.partition(" ")[0] for line in communities}
    flags = secure(tmp_path / "certs")
    with (
        Server(tmp_path / "data", *flags) as server,
        httpx.Client(base_url=f"https://{server.http}", verify=False, timeout=SECONDS) as http,
    ):
        for at in range(0, len(communities), 1000):
            announce(server, identity, *communities[at : at + 1000])
        with wisteria(tmp_path / "home", server.ready["sprout_tls"]) as client:
            until(lambda: client.log.count("Finished synchronizing") == 1024, seconds=MANY_SECONDS)
            client.rests()
            listed = ids & {path.name for path in client.grove.iterdir()}
            assert len(listed) == 1024
            first, *_ = odd = list(filter(is_odd, listed))
            assert len(odd) >= 25
            for id in odd:
                http.post(channel_of(id), json={"content": f"said in {id}"}).raise_for_status()
                client.holds(f"said in {id}")
            client.shows(f"said in {first}")  # of the others it draws what is not there already
            client.rests()
            client.answer("said-by-wisteria", 2)
            until(lambda: b"said-by-wisteria" in http.get(channel_of(id)).content, lambda: client.log[-2000:])
            question, answer = http.get(channel_of(id)).json()["messages"]
            assert answer["content"] == {"content": "said-by-wisteria", "inReplyTo": question["id"]}
        assert server.stop() == 0
        assert "Traceback" not in server.log


def channel_of(community: str) -> str:
    """The path of what is said in one of many communities of one name."""
    return f"/v1/channels/lobby~{digest_of(community)[:6]}/messages"
