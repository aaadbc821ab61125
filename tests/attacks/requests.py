"""HTTP requests that are meant to be read as something else, or to take long before anybody is known."""

from __future__ import annotations

import time

from .client_frames import Headers, http, request
from .target import Report, Target
from .wire import Raw

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
            peer.say(hidden)
            peer.first = peer.hear(b"}")
            peer.received += len(peer.first)
            peer.account(report)
    answer = http(target, f"/v1/channels/{HIDDEN}")
    report.hold("a body is no request", b" 404 " in answer[:20])
    return report
