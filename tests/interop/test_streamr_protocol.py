"""Every frame that Trellis emits, as the genuine library streamr-client-protocol reads it, in each version it knows.

The library must decode the frame, write it again as it was, and believe the signature. GroupKeyRotate (S2) is left
out: no library has ever known it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from gateway.demo_clients import RelayClient
from tests.adapters.streamr.conftest import Publisher
from tests.npm import NODE, WAIT, require_clients
from tests.server import Server

PAIRS = list(product((1, 2), (30, 31, 32)))
KINDS = {
    "BroadcastMessage",
    "UnicastMessage",
    "SubscribeResponse",
    "UnsubscribeResponse",
    "ResendResponseResending",
    "ResendResponseResent",
    "ResendResponseNoResend",
    "ErrorResponse",
}
KEY = "0123456789abcdef" * 4
PEM = "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n"
ALICE = Publisher(0xA11CE)
EXCHANGE = f"SYSTEM/keyexchange/{ALICE.address}"
STREAMS = {"sealed": {"require_encrypted_data": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_clients()
    env = {"TRELLIS_STREAMR__STREAMS": json.dumps(STREAMS)}
    with Server(tmp_path_factory.mktemp("data"), env=env) as server:
        yield server
        assert server.stop() == 0


class FrameRecorder:
    """A client with two versions that keeps every frame it gets, as text."""

    def __init__(self, socket: ClientConnection, control: int, message: int) -> None:
        self.socket, self.control, self.message = socket, control, message
        self.frames: list[str] = []

    async def ask(self, kind: int, *fields: Any, ends: tuple[int, ...]) -> Any:
        """Send a request, and keep everything until one of the types that end it."""
        where = [self.control, kind] if self.control == 1 else [self.control, kind, f"request {kind}"]
        await self.socket.send(json.dumps([*where, *fields]))
        return await self.until(*ends)

    async def until(self, *kinds: int) -> Any:
        """Keep what comes, up to a frame of one of these types."""
        while True:
            text = await asyncio.wait_for(self.socket.recv(), WAIT)
            assert isinstance(text, str)
            self.frames.append(text)
            frame = json.loads(text)
            if frame[1] in kinds:
                return frame

    async def resend(self, stream: str, last: int) -> Any:
        """Ask for the last messages of a stream."""
        fields = [stream, 0, "sub", last, None] if self.control == 1 else [stream, 0, last, None]
        return await self.ask(11, *fields, ends=(5, 6, 7))


def messages() -> Iterator[list[Any]]:
    """Messages of all kinds for the stream `all`, in every form in which publishers write them."""
    now = time.time_ns() // 1_000_000
    signed = [ALICE.message("all", {"n": n}, now, n, prev=[now, n - 1] if n else None) for n in range(3)]
    yield signed[0]
    _, message_id, prev, kind, _, encryption, _, content, _, signature_type, signature = signed[1]
    yield [31, message_id, prev, kind, encryption, content, signature_type, signature]
    _, message_id, prev, kind, _, _, _, content, _, signature_type, signature = signed[2]
    yield [30, message_id, prev, kind, content, signature_type, signature]
    yield [30, "all", 0, now, 3, "", None, None, 0, 27, '{"flat":1}', 0, None]
    yield [32, ["all", 0, now, 4, "", ""], None, 27, 0, 0, '{"S2":9}', 0, None]
    yield [32, ["all", 0, now, 5, "", ""], None, 27, 0, 0, None, '{"S2":10}', 0, None]
    yield ALICE.message("all", {"hé": "🌳"}, now, 6)
    yield ALICE.message("all", "00" * 20, now, 7, encryption=2, group_key="key 1")
    carrier = ALICE.message("all", "00" * 20, now, 8, encryption=2, group_key="key 1")
    carrier[8] = '["key 2","0011"]'
    carrier[10] = ALICE.sign(f"all0{now}8{ALICE.address}chain{carrier[7]}{carrier[8]}")
    yield carrier
    yield [31, ["all", 0, now, 9, "", ""], None, 27, 3, "00" * 40, 0, None]
    contents = {
        28: ["r", "all", PEM, ["key 1"]],
        29: ["r", "all", [["key 1", KEY]]],
        30: ["all", [["key 1", KEY]]],
        31: ["r", "all", "CODE", "why", ["key 1"]],
    }
    for kind, content in contents.items():
        yield ALICE.message(EXCHANGE, content, now, kind, kind=kind, encryption=1 if kind in (29, 30) else 0)
    objects = {
        28: {"requestId": "r", "streamId": "all", "publicKey": PEM},
        29: {"requestId": "r", "streamId": "all", "keys": [{"groupKey": KEY, "start": 5}]},
        30: {"streamId": "all", "groupKey": KEY, "start": 5},
    }
    for kind, content in objects.items():
        yield ALICE.message(EXCHANGE, content, now, 10 + kind, kind=kind)


def log_in(server: Server) -> str:
    """A session token of Alice."""
    login = f"http://{server.http}/api/v1/login"
    challenge = httpx.post(f"{login}/challenge/{ALICE.address}").json()
    signature = ALICE.sign(challenge["challenge"])
    answer = {"challenge": challenge, "signature": signature, "address": ALICE.address}
    return str(httpx.post(f"{login}/response", json=answer).json()["token"])


async def conversation(server: Server) -> list[FrameRecorder]:
    """Everything that clients of all versions are told, while all kinds of things are said."""
    url = f"ws://{server.http}/api/v1/ws?controlLayerVersion={{}}&messageLayerVersion={{}}"
    listeners = [FrameRecorder(await connect(url.format(*pair)), *pair) for pair in PAIRS]
    token = log_in(server)
    async with RelayClient(server.http) as relay, connect(url.format(2, 32)) as publisher:
        for listener in listeners:
            for stream in ("all", "sealed", EXCHANGE):
                await listener.ask(9, stream, 0, token, ends=(2,))
        for number, row in enumerate(messages()):
            await publisher.send(json.dumps([2, 8, f"publish {number}", row, None]))
        await publisher.send(json.dumps([2, 10, "end", "nothing", 0]))
        assert json.loads(await publisher.recv())[2] == "end", "every message was taken"
        for content in ({"from": "the relay"}, {"é": "🌳", "is": "the last"}):
            await relay.publish("all", content)
            await relay.publish("sealed", content)
        for listener in listeners:
            await finish(listener)
    for listener in listeners:
        await listener.socket.close()
    return listeners


async def finish(listener: FrameRecorder) -> None:
    """Resends, refusals, and the end."""
    while "the last" not in listener.frames[-1] or "sealed" in listener.frames[-1]:
        await listener.until(0)
    assert (await listener.resend("all", 100))[1] == 5
    assert (await listener.resend("sealed", 100))[1] == (6 if listener.message == 30 else 5)
    assert (await listener.resend("empty", 1))[1] == 6
    for bad in ("nonsense", f"[{listener.control},9]", f'[{listener.control},2,"r","s",0]', "[3,9]"):
        await listener.socket.send(bad)
        assert (await listener.until(7))[1] == 7
    for kind in (9, 10, 11):
        fields = ["all", 99, "sub", 1, None] if (kind, listener.control) == (11, 1) else ["all", 99, 1, None]
        assert (await listener.ask(kind, *fields, ends=(2, 3, 5, 6, 7)))[1] == 7
    for stream in ("all", "sealed", EXCHANGE):
        await listener.ask(10, stream, 0, ends=(3,))


def test_the_library_reads_every_frame(server: Server) -> None:
    listeners = asyncio.run(asyncio.wait_for(conversation(server), 60))
    samples: list[dict[str, Any]] = [
        {"frame": frame, "control": listener.control, "message": listener.message}
        for listener in listeners
        for frame in dict.fromkeys(listener.frames)
    ]
    answers = decoded(samples)
    assert [answer for answer in answers if "fault" in answer] == []
    kinds, types = defaultdict(set), defaultdict(set)
    for answer in answers:
        kinds[answer["library"]].add(answer["kind"])
        types[answer["library"]].add(answer["type"])
    assert kinds == dict.fromkeys(("2.2.15", "5.3.3", "8.4.1"), KINDS)
    known = {None, 27, 28, 29, 30}
    assert types == {"2.2.15": known, "5.3.3": known | {31}, "8.4.1": known | {31}}
    unread = {sample["frame"] for sample in samples} - {answer["frame"] for answer in answers}
    # Group keys in objects, and new keys in contents, are of control version 1 with messages of version 31 alone.
    assert all((EXCHANGE in frame and '"{' in frame) or ",27,3," in frame for frame in unread)
    told = {(listener.control, listener.message): len(listener.frames) for listener in listeners}
    assert min(told.values()) > 40, told


async def side_protocols(server: Server) -> list[dict[str, Any]]:
    """What nodes are told by the tracker and by the network layer, as samples."""
    samples: list[dict[str, Any]] = []
    for version in (1, 2):
        trackers = [connect(f"ws://{server.http}/tracker?address={name}") for name in ("one", "two")]
        async with trackers[0] as one, trackers[1] as two:
            asks: list[tuple[ClientConnection, list[Any]]] = [
                (one, [version, 1, "r1", {"streams": ["s::0"]}]),
                (two, [version, 1, "r2", {"streams": {"s::0": {}}}]),
                (one, [1, 3, "r3", "s", 0] if version == 1 else [2, 5, "r3", {"peerId": "one"}, "one", "type", {}]),
                (
                    one,
                    [version, 5, "r4", {"peerId": "one"}, "nobody", "type", {}] if version == 2 else [1, 1, "r4", {}],
                ),
            ]
            for node, ask in asks:
                await node.send(json.dumps(ask))
            await one.send(json.dumps([version, 1, "last", {"streams": ["t::0"]}]))
            text = ""
            while '"last"' not in text:
                text = str(await asyncio.wait_for(one.recv(), WAIT))
                samples.append({"frame": text, "tracker": version})
    async with connect(f"ws://{server.http}/network") as node:
        row = [32, ["nodes", 0, time.time_ns() // 1_000_000, 0, "", ""], None, 27, 0, 0, None, '{"n":1}', None, 0, None]
        requests: list[Any] = [[2, 9, "r", "nodes", 0, None], [2, 8, "r", row, None], [2, 11, "r", "nodes", 0, 5, None]]
        for question in [*requests, [2, 11, "none", "none", 0, 5, None], [2, 10, "r", "nodes", 0], [2, 99]]:
            await node.send(json.dumps(["4.4.3", 4, "node", question]))
        told: set[int] = set()
        while not told >= {0, 1, 2, 3, 4, 5, 6, 7}:
            _version, kind, _source, control = json.loads(await asyncio.wait_for(node.recv(), WAIT))
            assert kind == 4
            told.add(control[1])
            frame = json.dumps(control, ensure_ascii=False, separators=(",", ":"))
            samples.append({"frame": frame, "control": 2, "message": 32})
    return samples


def test_the_library_reads_frames_of_the_tracker_and_the_network_layer(server: Server) -> None:
    samples = asyncio.run(asyncio.wait_for(side_protocols(server), 60))
    answers = decoded(samples)
    assert [answer for answer in answers if "fault" in answer] == []
    assert {answer["frame"] for answer in answers} == {sample["frame"] for sample in samples}
    tracker = {"InstructionMessage", "StorageNodesResponse", "RelayMessage", "ErrorMessage"}
    assert {answer["kind"] for answer in answers} == KINDS | tracker


def decoded(samples: list[dict[str, Any]]) -> list[Any]:
    """What the libraries make of *samples*."""
    done = subprocess.run(
        ["node", "decode.cjs"], cwd=NODE, input=json.dumps(samples), capture_output=True, text=True, check=True
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


def test_the_library_refuses_malformed_frames(server: Server) -> None:
    assert server.http  # the libraries are there
    message = ALICE.message("s", {"n": 1}, 1)
    frames = [[2, 0, "", message[:9]], [2, 0, "", [*message[:7], '{"n":2}', *message[8:]]], [2, 2, "r", "s"], [2, 99]]
    samples: list[dict[str, Any]] = [{"frame": json.dumps(frame), "control": 2, "message": 32} for frame in frames]
    assert ["fault" in answer for answer in decoded(samples)] == [True] * 8
