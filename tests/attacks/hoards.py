"""Attacks that make the gateway remember, hold or decompress much for little input."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable

from adapters.sprout.forest import forest
from adapters.sprout.forest.forest import Content, ReplyPosition
from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients.sprout import ArborNode, _line

from .client_frames import (
    PING,
    RELAY,
    STREAMR,
    TRACKER,
    frame,
    http,
    message,
    publish,
    request,
    text_frame,
    upgrade,
    websocket,
)
from .target import Report, Target
from .unread import fill
from .wire import PATIENCE, Raw, drive

MILLION = 1_000_000
PATH = "p" * 60_000
RESENT = re.compile(rb'\[2,([567]),"r"')
LARGE_CHANNELS = 100  # channels whose newest message is large


def half_messages(target: Target, seconds: float) -> Report:
    """200 WebSocket messages of 1 MB that are never finished."""
    start = frame(b"x" * MILLION, final=False)[: MILLION - 100]
    return _send_once([websocket(target, path, start) for path in (RELAY, STREAMR) for _ in range(100)], seconds)


def half_fragments(target: Target, seconds: float) -> Report:
    """The same as whole fragments without the last one."""
    start = frame(b"x" * (MILLION - 1000), final=False)
    return _send_once([websocket(target, path, start) for path in (RELAY, STREAMR) for _ in range(100)], seconds)


def half_lines(target: Target, seconds: float) -> Report:
    """200 Sprout announces of 1,000 nodes, of which the last never comes."""
    start = b"announce 1 1000\n" + (b"SHA512_B32__" + b"A" * 43 + b" " + b"A" * 50_000 + b"\n") * 20
    return _send_once([Raw(target.sprout, start) for _ in range(200)], seconds)


def bodies(target: Target, seconds: float) -> Report:
    """100 bodies of nearly 1 MB for a message, all without the last bytes; where there are keys, without a key."""
    head = request(target, "/v1/channels/bodies/messages", "POST", b"")
    start = head.replace(b"Content-Length: 0", b"Content-Length: %d" % MILLION) + b" " * (MILLION - 100)
    return _send_once([Raw(target.http, start) for _ in range(100)], seconds)


def _send_once(peers: list[Raw], seconds: float) -> Report:
    """Let *peers* send their feeds once, and stay connected."""
    report = Report()
    for peer in peers:
        peer.turns = 1
    drive(peers, report, seconds)
    return report


def orphans(target: Target, seconds: float) -> Report:
    """Twenty Sprout connections that announce nodes whose parents nobody has."""
    author = ArborAuthor("orphan")
    parent = forest.node_id(b"nobody")
    text, nodes = Content(b"x" * 60_000), list[str]()
    now = int(time.time() * 1000)
    for n in range(70):
        raw = forest.sign_reply(
            ReplyPosition(parent, 2, parent, parent), text, author.identity().id, author._key, now + n
        )
        nodes.append(_line(ArborNode(forest.node_id(raw), raw)))
    feed = (f"announce 1 {len(nodes)}\n" + "\n".join(nodes) + "\n").encode()
    first = f"announce 0 1\n{_line(author.identity())}\n".encode()
    return _send_once([Raw(target.sprout, feed, first) for _ in range(20)], seconds)


def tracker(target: Target, seconds: float) -> Report:
    """A tracker node that says again and again, in 50 bytes, that it is in 1,000 streams others are in too."""
    names = [f"amplified/{n}" for n in range(1_000)]
    status = {"streams": {f"{name}::0": {"inboundNodes": [], "outboundNodes": [], "counter": 1} for name in names}}
    one = {"streamKey": "amplified/0::0", "inboundNodes": [], "outboundNodes": [], "counter": 1}
    many, few = text_frame([2, 1, "r", status]), text_frame([2, 1, "r", {"stream": one}])
    peers = [websocket(target, TRACKER.replace("attacker", f"node-{n}"), many + few * 100) for n in range(5)]
    report = Report()
    drive(peers, report, seconds)
    return report


def ids(target: Target, seconds: float) -> Report:
    """SubscribeRequests, and publishes for the key exchange, with stream ids of 1 MB, no two alike."""
    tail = "x" * (MILLION - 200)
    report, now, deadline = Report(), time.time_ns() // 1_000_000, time.monotonic() + seconds
    peers = [websocket(target, STREAMR) for _ in range(2)]
    for n in range(400):
        if time.monotonic() > deadline:
            break
        asked = text_frame([2, 9, "s", f"{n}{tail}", 0, None])
        keyed = publish(message(f"SYSTEM/keyexchange/{n}{tail}", '"x"', now))
        for index, text in enumerate((asked, keyed)):
            peers[index] = _send_and_read(target, peers[index], text, report)
    for peer in peers:
        peer.account(report)
    return report


def _send_and_read(target: Target, peer: Raw, text: bytes, report: Report) -> Raw:
    """Send *text* and read what was answered; return *peer*, or a new one if the gateway ended it."""
    try:
        peer.send(text)
        peer.pull(1 << 20)
    except OSError:
        peer.end()
    if peer.ended is None:
        return peer
    peer.account(report)
    return websocket(target, STREAMR)


def paths(target: Target, seconds: float) -> Report:
    """GETs of paths of 60 kB below /api/v1, no two alike."""
    feed = b"".join(request(target, f"/api/v1/{kind}/{n}{PATH}") for n in range(150) for kind in ("streams", "x"))
    report = Report()
    drive([Raw(target.http, feed) for _ in range(8)], report, seconds, again=lambda: Raw(target.http, feed))
    return report


def heads(target: Target, seconds: float) -> Report:
    """A header of 1 MB on HTTP requests and WebSocket handshakes, by 20 connections."""
    header = {"X-Large": "x" * MILLION}
    feeds = [request(target, "/v1/channels", headers=header), upgrade(target, RELAY, header)] * 10
    return _send_once([Raw(target.http, feed) for feed in feeds], seconds)


def fragments(target: Target, seconds: float) -> Report:
    """A message of 1 MB in fragments of one byte, and frames in segments of one byte."""
    many = frame(b"x", final=False) + frame(b"x", 0, final=False) * 500_000
    peers = [websocket(target, path, many) for path in (RELAY, STREAMR) for _ in range(4)]
    pinging = [websocket(target, RELAY, frame(b"x", final=False) + frame(b"", PING) * 1_000) for _ in range(2)]
    return _send_once([*peers, *pinging], seconds)


def arrays(target: Target, seconds: float) -> Report:
    """GET /v1/channels over channels whose newest message is 1 MiB of empty arrays."""
    body, report, deadline = b"[" + b"[]," * 349_000 + b"[]]", Report(), time.monotonic() + seconds / 2
    speaker, made = Raw(target.http), 0
    for n in range(LARGE_CHANNELS):
        if time.monotonic() > deadline:
            break
        speaker.send(request(target, f"/v1/channels/arrays%2F{n}/messages", "POST", body))
        if not (answer := speaker.receive_until(b"}")):
            break
        made += b" 201 " in answer[:20]
    report.answers[f"{made} channels of a message of 1 MiB"] += 1
    feeds = [request(target, path) for path in ("/v1/channels?limit=100", "/v1/peers/1", "/v1/channels/arrays%2F0")]
    drive([Raw(target.http, feed) for feed in feeds for _ in range(2)], report, seconds / 2)
    return report


def bomb(target: Target, seconds: float) -> Report:
    """Compression is offered, and a bomb sent to who takes the offer."""
    report = Report()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = (packer.compress(b" " * 1_000_000) + packer.flush(zlib.Z_FULL_FLUSH)) * 290
    text = bytearray(frame(packed[:-4]))
    text[0] |= 0x40
    peers = [
        websocket(target, path, bytes(text), {"Sec-WebSocket-Extensions": "permessage-deflate"})
        for path in (RELAY, STREAMR)
    ]
    for peer in peers:
        report.require("compression is not agreed to", b"permessage-deflate" not in peer.first.lower())
        peer.turns = 1
    drive(peers, report, seconds)
    return report


def descriptors(target: Target, seconds: float) -> Report:
    """Connections until there are no descriptors left; meanwhile history and resends are asked for."""
    report = Report()
    fill(target, "whole", 60)
    connection, streamr = Raw(target.http), websocket(target, STREAMR)
    connections = _fill_descriptors(target, report)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _ask(connection, report, request(target, "/v1/channels/whole/messages?limit=60"), b'"sequence"', b'"next"')
        _resend(streamr, report)
        time.sleep(0.2)
        if connection.ended is not None:
            break
    for each in connections:
        each.socket.close()
    time.sleep(0.5)
    report.require("it serves again when they are gone", b" 200 " in http(target, "/readyz")[:20])
    return report


def _fill_descriptors(target: Target, report: Report) -> list[Raw]:
    """As many connections as there are descriptors for, and some more; each speaks."""
    found = []
    makes: list[Callable[[], Raw]] = [
        lambda: websocket(target, RELAY),
        lambda: Raw(target.sprout, b"", b"version 1 0.1\n"),
    ]
    for n in range(600):
        try:
            found.append(makes[n % 2]())
        except OSError:
            report.answers["no connection"] += 1
            if report.answers["no connection"] > 2:
                break
    report.answers[f"{len(found) // 100}00 connections"] += 1
    return found


def _ask(connection: Raw, report: Report, text: bytes, each: bytes, last: bytes) -> None:
    """A page of history has all 60, or is refused."""
    try:
        connection.send(text)
        answer = connection.receive_until(last)
    except OSError:
        connection.end()
        return
    if b" 200 " in answer[:20]:
        report.require("a page of history is whole or an error", answer.count(each) == 60)
    report.answers.update(["http " + answer[9:12].decode(errors="replace")])


def _resend(streamr: Raw, report: Report) -> None:
    """A resend brings all 60, or ends with an error."""
    if streamr.ended is not None:
        return
    try:
        streamr.send(frame('[2,11,"r","whole",0,60,null]'))
        answer, deadline = b"", time.monotonic() + PATIENCE
        while not RESENT.search(answer[-200:]) and time.monotonic() < deadline:
            if not (data := streamr.socket.recv(1 << 16)):
                streamr.end()
                break
            answer += data
    except OSError:
        streamr.end()
        return
    ending = RESENT.search(answer[-200:])
    report.answers["resend " + (ending[1].decode() if ending else "without an end")] += 1
    if ending and ending[1] in (b"5", b"6"):
        report.require("a resend is whole or an error", answer.count(b"[2,1,") == 60)
