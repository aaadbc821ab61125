"""HTTP requests that are meant to be read as something else, or to take long before anybody is known."""

from __future__ import annotations

import time

from .client_frames import Headers, http, request
from .target import Report, Target
from .wire import Raw, drive

HIDDEN = "smuggled"
UPGRADES: tuple[Headers, ...] = (
    {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQBAAAAAAIAAAAA"},
    {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
    {"Connection": "upgrade", "Upgrade": "tls/1.0"},
)


def smuggled(target: Target, seconds: float) -> Report:
    """Requests in the bodies of requests that ask for another protocol, in a segment of their own."""
    report, deadline = Report(), time.monotonic() + seconds
    hidden = request(target, f"/v1/channels/{HIDDEN}", "PUT")
    while time.monotonic() < deadline:
        for upgrade in UPGRADES:
            headers = {"Content-Type": "text/plain", **upgrade}
            whole = request(target, "/v1/channels/bodies/messages", "POST", hidden, headers)
            peer = Raw(target.http, b"", whole[: -len(hidden)])
            time.sleep(0.05)
            peer.send(hidden)
            peer.first = peer.receive_until(b"}")
            peer.received += len(peer.first)
            peer.account(report)
    answer = http(target, f"/v1/channels/{HIDDEN}")
    report.require("a body is no request", b" 404 " in answer[:20])
    return report


def long_heads(target: Target, seconds: float) -> Report:
    """What has to be read before anybody is known, as long as it may be, and longer."""
    commas, many = "," * 60_000, {f"x{n}": "" for n in range(8_000)}
    names = ("Accept", "Accept-Encoding", "If-None-Match", "X-Forwarded-For", "Content-Type", "Authorization")
    feeds = [request(target, "/console/", headers={name: size}) for name in names for size in (commas, commas[:8_000])]
    feeds += [request(target, f"{path}?_{'&' * 60_000}") for path in ("/v1/channels", "/api/v1/streams", "/")]
    feeds += [request(target, "/healthz", headers=many), request(target, "/v1/channels", headers=many)]
    report = Report()
    drive([Raw(target.http, feed) for feed in feeds], report, seconds, again=lambda: Raw(target.http, feeds[-1]))
    return report


def small_chunks(target: Target, seconds: float) -> Report:
    """Chunks of one byte, of blank lines for a channel, and of a text that never ends."""
    report, feeds = Report(), list[Raw]()
    for kind in ("application/x-ndjson", "text/plain"):
        headers = {"Content-Type": kind, "Transfer-Encoding": "chunked"}
        head = request(target, "/v1/channels/chunks/messages", "PUT", b"", headers).replace(b"PUT", b"POST", 1)
        start = head.replace(b"Content-Length: 0\r\n", b"")
        feeds += [Raw(target.http, b"1\r\n\n\r\n" * 10_000, start) for _ in range(4)]
    drive(feeds, report, seconds)
    return report
