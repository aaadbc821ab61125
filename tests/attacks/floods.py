"""Valid requests and forged ones, sent as fast as the gateway reads them."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from itertools import count

from coincurve import PrivateKey
from sha3 import keccak_256

from adapters.sprout.forest import forest
from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients import ArborNode
from gateway.demo_clients.sprout import _line

from .client_frames import (
    RELAY,
    STREAMR,
    WS,
    ask,
    broadcast,
    frame,
    http,
    message,
    publish,
    request,
    subscribe_relay,
    text_frame,
    websocket,
)
from .target import Report, Target
from .unread import community_of
from .wire import Raw, drive

KEY = PrivateKey.from_int(0xA77AC4)
BATCH = 300  # messages that are made beforehand
NAMES = 20_000


def _keccak(data: bytes) -> bytes:
    return bytes(keccak_256(data).digest())


def address_of(key: PrivateKey) -> str:
    """Return the Ethereum address of *key*."""
    return "0x" + _keccak(key.public_key.format(compressed=False)[1:])[12:].hex()


ADDRESS = address_of(KEY)


def sign(text: str, key: PrivateKey = KEY) -> str:
    """A signature by `personal_sign`."""
    data = text.encode()
    raw = key.sign_recoverable(_keccak(b"\x19Ethereum Signed Message:\n%d" % len(data) + data), hasher=None)
    return f"0x{raw[:64].hex()}{raw[64] + 27:02x}"


def ws(target: Target, seconds: float) -> Report:
    """Everything that can be asked on `/v1/ws`, of one channel, without an end."""
    asked = (
        *(ask("publish", channel="flood/ws", content="x"), ask("history", channel="flood/ws")),
        *(ask("presence", channel="flood/ws"), ask("direct", channel="flood/ws", peer=1, content="x")),
        *(ask("subscribe", pattern="flood/*", after=0), ask("unsubscribe", pattern="flood/*")),
    )
    report = Report()
    drive([websocket(target, WS, b"".join(asked) * (BATCH // len(asked))) for _ in range(4)], report, seconds)
    return report


def relay(target: Target, seconds: float) -> Report:
    """Broadcasts."""
    feed = broadcast("flood", "x") * BATCH
    report = Report()
    drive([websocket(target, RELAY, feed) for _ in range(4)], report, seconds)
    return report


def members(target: Target, seconds: float) -> Report:
    """Broadcasts of 12,000 members of one name, in the order of a program, and with a `src` among them."""
    many = ',"":0' * 12_000
    rows = ('{"type":6,"topic":"flood","src":0%s}', '{"type":6,"topic":"flood","a":0,"src":0%s,"b":0}')
    feed = b"".join(frame(row % many) for row in rows)
    report = Report()
    drive([websocket(target, RELAY, feed) for _ in range(4)], report, seconds)
    return report


def streamr(target: Target, seconds: float) -> Report:
    """Unsigned messages."""
    now, report = time.time_ns() // 1_000_000, Report()
    feed = b"".join(publish(message("flood", '"x"', now + n, n)) for n in range(BATCH * 10))
    drive([websocket(target, STREAMR, feed) for _ in range(4)], report, seconds)
    return report


def forged_streamr(target: Target, seconds: float) -> Report:
    """Messages signed by another key than their publisher's: each signature has to be verified."""
    now, report = time.time_ns() // 1_000_000, Report()
    victim = "0x" + "ab" * 20
    rows = [message("forged", '"x"', now + n, 0, victim, sign(str(n))) for n in range(BATCH)]
    feed = b"".join(map(publish, rows))
    peers = [websocket(target, STREAMR, feed) for _ in range(4)]
    listener = websocket(target, STREAMR, text_frame([2, 9, "s", "forged", 0, None]))
    listener.turns = 1
    drive([*peers, listener], report, seconds)
    report.require("nothing forged is on the bus", b'"forged",0,' not in listener.last + listener.first)
    return report


def sprout(target: Target, seconds: float) -> Report:
    """Announces of good nodes, over and over."""
    return _announces(target, seconds, "flood/sprout", lambda node: node)


def forged_sprout(target: Target, seconds: float) -> Report:
    """Announces of nodes whose signature is not the author's."""
    return _announces(target, seconds, "forged/sprout", forged_node)


def forged_node(node: ArborNode) -> ArborNode:
    """*node* with another signature."""
    raw = node.raw[:-20] + bytes((node.raw[-20] ^ 1,)) + node.raw[-19:]
    return ArborNode(forest.node_id(raw), raw)


def _announces(target: Target, seconds: float, channel: str, change: Callable[[ArborNode], ArborNode]) -> Report:
    community, author, report = community_of(target, channel), ArborAuthor("attacker"), Report()
    nodes = [change(author.reply(community, f"{n}", {})) for n in range(BATCH)]
    feed = "".join(f"announce {n} 1\n{_line(node)}\n" for n, node in enumerate(nodes)).encode()
    first = f"announce 0 1\n{_line(author.identity())}\n".encode()
    drive([Raw(target.sprout, feed, first) for _ in range(4)], report, seconds)
    return report


def rest(target: Target, seconds: float) -> Report:
    """Publishing by REST."""
    feed, report = request(target, "/v1/channels/flood/messages", "POST", b'"x"') * 20, Report()
    drive([Raw(target.http, feed) for _ in range(8)], report, seconds)
    return report


def asking(target: Target, seconds: float) -> Report:
    """Everything that can be asked by REST, all the time."""
    paths = ("/v1/channels?limit=1000", "/v1/stats", "/v1/protocols", "/metrics", "/docs", "/openapi.json",
             "/asyncapi.json", "/v1/channels/flood", "/v1/channels/flood/messages", "/v1/channels/flood/peers",
             "/v1/peers/1", "/api/v1/streams", "/api/v1/users/me", "/healthz", "/nowhere")  # fmt: skip
    report = Report()
    drive([Raw(target.http, request(target, path)) for path in paths], report, seconds)
    return report


def logins(target: Target, seconds: float) -> Report:
    """Logins with one key after another, while somebody else is logged in."""
    report, deadline = Report(), time.monotonic() + seconds
    token = log_in(target, KEY)
    for n in count(1):
        if time.monotonic() > deadline:
            break
        report.sent += 1
        if not log_in(target, PrivateKey.from_int(n)):
            report.answers["refused"] += 1
    answer = http(target, "/api/v1/users/me", headers={"Authorization": f"Bearer {token}"})
    report.require("who was logged in still is", b"200 OK" in answer[:20] or b" 429 " in answer[:20])
    return report


def log_in(target: Target, key: PrivateKey) -> str:
    """Log in with *key*; return the session token, empty if the gateway refuses."""
    address = address_of(key)
    head, _, body = http(target, f"/api/v1/login/challenge/{address}", "POST").partition(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        return ""
    challenge = json.loads(body)
    answer = {"challenge": challenge, "signature": sign(challenge["challenge"], key), "address": address}
    found = http(target, "/api/v1/login/response", "POST", json.dumps(answer).encode())
    return str(json.loads(found.partition(b"\r\n\r\n")[2]).get("token", "")) if b" 200 " in found[:20] else ""


def challenges(target: Target, seconds: float) -> Report:
    """Challenges, at full speed."""
    report = Report()
    feed = request(target, f"/api/v1/login/challenge/{ADDRESS}", "POST") * 20
    drive([Raw(target.http, feed) for _ in range(8)], report, seconds)
    return report


def channels(target: Target, seconds: float) -> Report:
    """A new channel with every request, on all protocols."""
    report, numbers = Report(), count()
    puts = b"".join(request(target, f"/v1/channels/filled%2F{next(numbers)}", "PUT") for _ in range(NAMES))
    broadcasts = b"".join(broadcast(f"filled/{next(numbers)}", "x") for _ in range(NAMES))
    subscribed = b"".join(subscribe_relay(f"filled/{next(numbers)}") for _ in range(NAMES))
    streams = b"".join(text_frame([2, 9, "s", f"filled/{next(numbers)}", 0, None]) for _ in range(NAMES))
    peers = [Raw(target.http, puts), websocket(target, RELAY, broadcasts), websocket(target, RELAY, subscribed)]
    drive([*peers, websocket(target, STREAMR, streams)], report, seconds)
    answer = http(target, "/v1/channels/honest%2Fposts/messages", "POST", b"1")
    report.require("who has a channel still speaks there", b" 201 " in answer[:20] or b" 429 " in answer[:20])
    return report


def subscriptions(target: Target, seconds: float) -> Report:
    """One connection that subscribes to more and more."""
    report = Report()
    feed = b"".join(subscribe_relay(f"some/{n}") for n in range(11_000))
    drive([websocket(target, RELAY, feed)], report, seconds)
    return report


def crowded(target: Target, seconds: float) -> Report:
    """Connections that join a channel with 200 pages in it, which are told, and then hang up."""
    crowd = [websocket(target, WS) for _ in range(200)]
    for each in crowd:
        each.send(ask("subscribe", channel="crowded"))
    report, deadline = Report(connections=len(crowd)), time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            raw = websocket(target, RELAY)
            raw.send(subscribe_relay("crowded"))
            raw.receive_until(b"}")
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.socket.close()
        except OSError:
            report.answers["no connection"] += 1
        report.connections += 1
    for each in crowd:
        each.socket.close()
    return report


def churn(target: Target, seconds: float) -> Report:
    """Connections that are opened, half used, and reset, as fast as that goes."""
    report, deadline = Report(), time.monotonic() + seconds
    halves = [
        (target.http, b""),
        (target.http, b"GET / HTTP/1.1\r\n"),
        (target.sprout, b""),
        (target.sprout, b"version"),
    ]
    opened = [partial(Raw, port, b"", text) for port, text in halves] + [
        partial(websocket, target, RELAY), partial(websocket, target, STREAMR)
    ]  # fmt: skip
    for n in count():
        if time.monotonic() > deadline:
            break
        try:
            raw = opened[n % len(opened)]()
        except OSError:
            report.answers["no connection"] += 1
            continue
        if n % 3:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.socket.close()
        report.connections += 1
    return report


def after_close(target: Target, seconds: float) -> Report:
    """WebSockets that say goodbye and go on sending as fast as that goes; one that ends is replaced."""
    report, deadline, rest = Report(), time.monotonic() + seconds, bytes(1 << 18)
    peers: list[Raw] = []
    while time.monotonic() < deadline:
        while len(peers) < 20:
            raw = websocket(target, RELAY)
            raw.socket.sendall(frame(b"\x03\xe8", 0x88))
            raw.socket.setblocking(False)
            peers.append(raw)
            report.connections += 1
        for raw in list(peers):
            try:
                raw.socket.send(rest)
            except BlockingIOError:
                continue
            except OSError:
                raw.socket.close()
                peers.remove(raw)
    for raw in peers:
        raw.socket.close()
    return report
