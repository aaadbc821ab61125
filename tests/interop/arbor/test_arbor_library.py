"""Our keys, nodes and lines, judged by forest-go and sprout-go themselves (see main.go here)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

from adapters.sprout.forest import forest, node_rules, openpgp, twig
from adapters.sprout.forest.forest import Community, Content, Identity, Node, Reply
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire import base64url, codec
from adapters.sprout.wire.parser import Parser

HERE = Path(__file__).parent
GO = shutil.which("go")
SECONDS = 60  # for anything that the other side does
NOW = 1_795_240_000_000

pytestmark = pytest.mark.skipif(GO is None, reason="go is not installed")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The genuine client, built."""
    assert GO is not None
    binary = tmp_path_factory.mktemp("arbor") / "arbor-peer"
    subprocess.run([GO, "build", "-o", binary, "."], cwd=HERE, check=True, timeout=SECONDS * 5)
    return binary


@cache
def key() -> SecretKey:
    return SecretKey.generate(NOW // 1000)


def tree() -> list[bytes]:
    """An identity, its community, and a chain of replies."""
    nodes = [forest.sign_identity("alicé", key(), NOW, twig.encode({"note/1": b"x"}))]
    author = forest.node_id(nodes[0])
    nodes.append(forest.sign_community("general", author, key(), NOW))
    for depth in range(4):
        parent = forest.decode(nodes[-1])
        assert isinstance(parent, Community | Reply)
        place = forest.position_below(forest.node_id(nodes[-1]), parent)
        metadata = twig.encode({"expiration/1": b"2099-01-01T00:00:00Z", "origin/1": b"here"} if depth else {})
        content = Content("grüße\n".encode() * depth)
        nodes.append(forest.sign_reply(place, content, author, key(), NOW + depth, metadata))
    return nodes


def verified(program: Path, nodes: list[bytes]) -> list[Any]:
    lines = b"".join(base64url.encode(node) + b"\n" for node in nodes)
    done = subprocess.run([program, "verify"], input=lines, capture_output=True, check=True, timeout=SECONDS)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_library_finds_no_fault_with_our_nodes(program: Path) -> None:
    nodes = tree()
    results = verified(program, nodes)
    assert [result["id"] for result in results] == [forest.node_id(raw) for raw in nodes]
    for raw, result in zip(nodes, results, strict=True):
        node = forest.decode(raw)
        assert result["checks"] == {"internal": "", "references": "", "signature": ""}
        assert (result["author"], result["parent"], result["depth"]) == (node.author, node.parent, node.depth)
        assert result["created_ms"] == node.created
        said = {pair: value.decode() for pair, value in twig.decode(node.metadata.blob).items()}
        assert result.get("metadata", {}) == said
        if isinstance(node, Reply):
            assert (result["type"], result.get("content", "")) == ("reply", node.content.text)
            assert (result["community"], result["conversation"]) == (node.community, node.conversation)
        else:
            assert result["name"] == node.name.text


def test_the_library_sees_a_forged_signature(program: Path) -> None:
    nodes = tree()[:3]
    nodes[2] = nodes[2][:-1] + bytes((nodes[2][-1] ^ 1,))
    assert verified(program, nodes)[2]["checks"]["signature"]


class GoClient:
    """The genuine client on a socket, with us as the relay."""

    def __init__(self, process: subprocess.Popen[str], sock: socket.socket) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin: IO[str] = process.stdin
        self.stdout: IO[str] = process.stdout
        self.sock = sock
        self.parser = Parser()

    def command(self, line: str) -> None:
        self.stdin.write(line + "\n")
        self.stdin.flush()

    def event(self, name: str) -> Any:
        """The next event of that name."""
        for line in self.stdout:
            event = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"the client ended before {name}")

    def frame(self) -> codec.Frame:
        """The next frame that it sends."""
        while (frame := self.parser.next_frame()) is None:
            data = self.sock.recv(1 << 16)
            assert data
            self.parser.feed(data)
        return frame

    def send(self, frame: codec.Frame) -> None:
        self.sock.sendall(codec.encode(frame))

    def announced(self) -> tuple[codec.NodeLine, Node]:
        """The one node that it announces next; we say that it is welcome."""
        frame = self.frame()
        assert isinstance(frame, codec.Announce)
        self.send(codec.Status(frame.id))
        (line,) = frame.nodes
        return line, forest.decode_as(line.id, line.raw)


@contextmanager
def client(program: Path, *flags: str) -> Iterator[GoClient]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with subprocess.Popen(
            [program, *flags, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                sock, _ = server.accept()
                sock.settimeout(SECONDS)
                with sock:
                    yield GoClient(process, sock)
            finally:
                process.kill()


def answer_until_stored(go: GoClient, lines: list[codec.NodeLine]) -> None:
    """Announce the deepest reply: the client asks for the author, then for the ancestry, and takes in all *lines*."""
    held = {line.id: line for line in lines}
    go.send(codec.Announce(7, (lines[-1],)))
    assert go.event("announced")["id"] == lines[-1].id
    stored = set()
    while True:
        frame = go.frame()
        if isinstance(frame, codec.Query):
            go.send(codec.Response(frame.id, tuple(held[id] for id in frame.node_ids)))
        elif isinstance(frame, codec.Ancestry):
            assert (frame.node_id, frame.levels) == (lines[-1].id, 4)
            go.send(codec.Response(frame.id, tuple(lines[1:-1])))
            break
        else:
            assert frame == codec.Status(7)
    while lines[-1].id not in stored:
        stored.add(go.event("stored")["id"])
    assert stored == held.keys()


def test_a_genuine_client_and_our_codec_read_each_other(program: Path) -> None:
    nodes = tree()
    lines = [codec.node_line(forest.node_id(raw), raw) for raw in nodes]
    community = lines[1].id
    with client(program) as go:
        go.command("version")
        assert go.frame() == codec.Version(0)
        go.send(codec.Status(0))
        assert "error" not in go.event("version")

        go.command("list 10")
        assert go.frame() == codec.List(1, 1, 10)
        go.send(codec.Response(1, (lines[1],)))
        assert go.event("answered")["id"] == community
        assert go.event("list")["count"] == 1

        go.command(f"subscribe {community}")
        assert go.frame() == codec.Subscribe(2, community)
        go.send(codec.Status(2))
        assert "error" not in go.event("subscribe")

        answer_until_stored(go, lines)

        go.command(f"say {lines[-1].id} hello from Go")
        _, me = go.announced()
        _, said = go.announced()
        assert isinstance(said, Reply)
        assert said.content.text == "hello from Go"
        place = forest.position_below(lines[-1].id, reply_of(nodes[-1]))
        assert (said.parent, said.depth, said.community, said.conversation) == place
        assert go.event("say")["author"] == said.author
        assert isinstance(me, Identity)


def reply_of(raw: bytes) -> Reply:
    node = forest.decode(raw)
    assert isinstance(node, Reply)
    return node


def test_a_genuine_client_survives_our_refusals(program: Path) -> None:
    with client(program) as go:
        go.send(codec.Status(codec.NO_ID, codec.StatusCode.MALFORMED))
        go.event("unsolicited")
        go.command("list 10")
        assert isinstance(go.frame(), codec.List)
        go.send(codec.Status(0, codec.StatusCode.MALFORMED))
        assert "malformed" in go.event("list")["error"]
        go.command("version")
        go.frame()
        go.send(codec.Status(1))
        assert "error" not in go.event("version")


@pytest.mark.parametrize("whose", ["ours", "go's"])
def test_key_files_are_interchangeable(program: Path, tmp_path: Path, whose: str) -> None:
    path = tmp_path / "key"
    if whose == "ours":
        path.write_bytes(key().file)
    with client(program, "-key", str(path), "-name", "somebody") as go:
        go.command("identity")
        line, me = go.announced()
    read = SecretKey(path.read_bytes())
    assert isinstance(me, Identity)
    assert me.public_key == read.public_key
    assert node_rules.validate(me, line.raw, NOW, None, None).ok
    made = forest.sign_identity("somebody", read, me.created)
    # Go says when it signed, which may be the second after it says that it made the node.
    assert made == line.raw or read.sign(forest.signed_part(me, line.raw), me.created // 1000 + 1) == me.signature
    openpgp.PublicKey(me.public_key).verify(forest.signed_part(me, line.raw), me.signature)
