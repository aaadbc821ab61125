"""Attempts to impersonate others, to exceed one's rights, and to act through a visitor's browser."""

from __future__ import annotations

import time
from itertools import product

from coincurve import PrivateKey

from .client_frames import (
    RELAY,
    STREAMR,
    frame,
    http,
    message,
    publish,
    request,
    subscribe_relay,
    subscribe_streamr,
    text_frame,
    texts,
    upgrade,
    websocket,
)
from .floods import address_of, sign
from .target import Report, Target
from .wire import Raw, message_words

PAGE = {"Origin": "https://evil.example"}
VERBS = ("subscribe", "publish", "direct", "history")
ARRIVAL_SECONDS = 0.4  # in which a message that is delivered at all has arrived


def _signed(stream: str, content: str, key: PrivateKey) -> tuple[list[object], str]:
    """Return a message that *key* signed, and the address of *key*."""
    address = address_of(key)
    now = time.time_ns() // 1_000_000
    row = message(stream, content, now, 0, address, sign(f"{stream}0{now}0{address}attack{content}", key))
    return row, address


def replay(target: Target, seconds: float) -> Report:
    """Somebody's signed message is replayed; who replays it then speaks for them, and listens to what is for them."""
    report, deadline = Report(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        _replay(target, report)
        time.sleep(0.1)
    return report


def _replay(target: Target, report: Report) -> None:
    row, address = _signed("replayed", '"mine"', PrivateKey())
    attacker, witness, friend = (websocket(target, STREAMR) for _ in range(3))
    witness.send(subscribe_streamr("replayed"))
    witness.receive_until(b'"s"')
    attacker.send(publish(row))
    witness.receive_until(b"mine")
    for stream in (f"replayed/@{address}", f"SYSTEM/keyexchange/{address}", "replayed"):
        attacker.send(subscribe_streamr(stream))
    attacker.send(publish(message("replayed", '"not mine"', row[1][1] + 1, 1, address)))  # type: ignore[index]
    time.sleep(ARRIVAL_SECONDS)
    friend.send(publish(message(f"replayed/@{address}", '"a secret"', row[1][1] + 2)))  # type: ignore[index]
    friend.send(publish(message(f"SYSTEM/keyexchange/{address}", '"a key"', row[1][1] + 3)))  # type: ignore[index]
    time.sleep(ARRIVAL_SECONDS)
    for peer in (attacker, witness, friend):
        peer.socket.setblocking(False)
        peer.pull(1 << 20)
    heard = [frame[3] for frame in texts(witness.first.partition(b"\r\n\r\n")[2]) if frame[1] == 0]
    spoken = [row[1][4].lower() for row in heard if row[7] == '"not mine"']
    report.require("nobody speaks for whom they replay", address.lower() not in spoken)
    report.require("direct messages go to their addressee alone", b"a secret" not in attacker.first)
    for peer in (attacker, witness, friend):
        peer.account(report)


def spoof(target: Target, seconds: float) -> Report:
    """Numbers of others as `src`; direct messages between others, listened to in every way there is."""
    report, deadline = Report(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        a, b, attacker = (websocket(target, RELAY) for _ in range(3))
        for each in (a, b, attacker):
            each.send(subscribe_relay("spoofed"))
            each.receive_until(b"peers")
        a.send(text_frame({"type": 6, "topic": "spoofed", "who": "a"}))
        number = _source(b.receive_until(b'"a"'), "a")
        attacker.send(text_frame({"type": 6, "topic": "spoofed", "src": number, "who": "attacker"}))
        report.require("src is the sender's", _source(b.receive_until(b'"attacker"'), "attacker") != number)
        b.send(text_frame({"type": 4, "topic": "spoofed", "dst": number, "who": "a secret"}))
        a.receive_until(b"a secret")
        attacker.socket.setblocking(False)
        attacker.pull(1 << 20)
        report.require("direct messages go to their addressee alone", b"a secret" not in attacker.first)
        for each in (a, b, attacker):
            each.account(report)
    return report


def _source(data: bytes, who: str) -> int:
    """The `src` of what somebody said."""
    return next(int(packet["src"]) for packet in texts(data) if packet.get("who") == who)


def pages(target: Target, seconds: float) -> Report:
    """Requests that a page of another origin, or of a name that was rebound, makes a browser send."""
    report, deadline = Report(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        for path in ("/v1/channels", "/v1/stats", "/api/v1/streams"):
            _refused(report, f"{path} by another page", http(target, path, headers=PAGE))
        _refused(report, "a post", http(target, "/v1/channels/web/messages", "POST", b"1", PAGE))
        for path in (RELAY, STREAMR, "/tracker", "/network"):
            raw = Raw(target.http, greeting=upgrade(target, path, headers=PAGE))
            _refused(report, f"{path} by another page", raw.receive_until(b"\r\n\r\n"))
            raw.account(report)
        for path in ("/v1/channels", "/metrics", "/docs", "/asyncapi.json"):
            raw = Raw(target.http)
            raw.send(request(target, path).replace(target.host.encode(), b"evil.example"))
            _refused(report, f"{path} for another host", raw.receive_until(b"\r\n\r\n"))
            raw.account(report)
        raw = Raw(
            target.sprout, greeting=b"POST / HTTP/1.1\r\nHost: evil.example\r\nOrigin: null\r\n\r\nversion 1 0.1\n"
        )
        report.require("Sprout answers no browser", b"status 1 0" not in raw.receive_until(b"status"))
        raw.account(report)
    return report


def _refused(report: Report, what: str, answer: bytes) -> None:
    report.answers.update(message_words(answer[:20]))
    report.require(f"{what} is refused", any(code in answer[:20] for code in (b" 400 ", b" 403 ", b" 421 ")))


# How each right is used over REST: method, path and body.
REST = {
    "subscribe": ("GET", "/v1/channels/kept/peers", b""),
    "publish": ("POST", "/v1/channels/kept/messages", b"1"),
    "direct": ("POST", "/v1/channels/kept/peers/1/messages", b"1"),
    "history": ("GET", "/v1/channels/kept/messages", b""),
}
ADMIN = {  # requests that need the right `admin`, by the right that the key has instead
    "subscribe": ("DELETE", "/v1/channels/kept", b""),
    "history": ("PUT", "/v1/channels/kept", b""),
}


def keys(target: Target, seconds: float) -> Report:
    """No key, a wrong one, and one without the right, for each verb of each protocol."""
    report, deadline = Report(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        for verb, (method, path, body) in REST.items():
            _status(report, f"{verb} by REST without a key", http(target, path, method, body), b"401")
            wrong = http(target, path, method, body, _bearer("trellis_wrong"))
            _status(report, f"{verb} by REST with a wrong key", wrong, b"401")
            for other in VERBS:
                answer = http(target, path, method, body, _bearer(target.keys[other]))
                if other != verb:
                    _status(report, f"{verb} by REST with the right to {other}", answer, b"403")
                else:
                    report.require(f"{verb} by REST with the right to it", answer[9:12] not in (b"401", b"403"))
        for verb, (method, path, body) in ADMIN.items():
            answer = http(target, path, method, body, _bearer(target.keys[verb]))
            _status(report, f"{method} of a channel with the right to {verb}", answer, b"403")
        _websockets(target, report)
        _sprout(target, report)
    return report


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _status(report: Report, what: str, answer: bytes, status: bytes) -> None:
    report.answers[f"http {answer[9:12].decode(errors='replace')}"] += 1
    report.require(f"{what} is refused with {status.decode()}, not {answer[9:12]!r}", answer[9:12] == status)


def _websockets(target: Target, report: Report) -> None:
    now = time.time_ns() // 1_000_000
    asked = {
        (RELAY, "subscribe"): subscribe_relay("kept"),
        (RELAY, "publish"): text_frame({"type": 6, "topic": "kept", "n": 1}),
        (RELAY, "direct"): text_frame({"type": 4, "topic": "kept", "dst": 1, "n": 1}),
        (STREAMR, "subscribe"): subscribe_streamr("kept"),
        (STREAMR, "publish"): publish(message("kept", "1", now)),
        (STREAMR, "direct"): publish(message("kept/@1", "1", now)),
        (STREAMR, "history"): frame('[2,11,"r","kept",0,1,null]'),
    }
    for path in (RELAY, STREAMR, "/network", TRACKER_PATH):
        raw = Raw(target.http, greeting=upgrade(target, path + ("&" if "?" in path else "?") + "key=trellis_wrong"))
        _status(report, f"{path} with a wrong key", raw.receive_until(b"\r\n\r\n"), b"401")
        raw.socket.close()
    for ((path, verb), text), other in product(asked.items(), (None, *VERBS)):
        if other == verb:
            continue
        key = "" if other is None else ("&" if "?" in path else "?") + f"key={target.keys[other]}"
        raw = Raw(target.http, greeting=upgrade(target, path + key))
        head = raw.receive_until(b"\r\n\r\n")
        report.answers.update(message_words(head))
        if b" 101 " in head[:20]:
            raw.send(text)
            answer = raw.receive_until(b"}" if path == RELAY else b"]")
            told = b"PermissionDenied" if path == RELAY else b"PERMISSION_DENIED"
            refused = told in answer or b"AUTHENTICATION_FAILED" in answer or b"[2,7," in answer
            report.require(f"{verb} at {path} with the right to {other} is refused, not {answer[-100:]!r}", refused)
        raw.socket.close()


def _sprout(target: Target, report: Report) -> None:
    """A channel without a grant is not there by Sprout, where nobody can show a key."""
    found = http(target, "/v1/channels/kept", headers=_bearer(target.keys["history"])).replace(b'": "', b'":"')
    community = found.partition(b'"community":"')[2].partition(b'"')[0].decode()
    for text in (f"subscribe 1 {community}", f"leaves_of 1 {community} 10", f"query 1 1\n{community}"):
        raw = Raw(target.sprout, greeting=text.encode() + b"\n")
        answer = raw.receive_until(b"\n")
        refused = answer.startswith((b"status 1 1", b"status 1 4", b"response 1 0")) or not answer
        report.require(f"{text.split()[0]} by Sprout without a grant is refused, not {answer[:30]!r}", refused)
        report.answers.update(message_words(answer))
        raw.socket.close()


TRACKER_PATH = "/tracker?address=stranger"
