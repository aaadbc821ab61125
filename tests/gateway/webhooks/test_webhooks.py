"""Webhooks against a real receiver: at least once, in order, signed, bounded, and kept across restarts and kills."""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backup import snapshot
from gateway.commands.certificates import dev_cert
from gateway.webhooks import courier, delivery
from gateway.webhooks.addresses import AddressPolicy, is_public
from gateway.webhooks.model import DeadLetter, Webhook
from gateway.webhooks.sender import MAX_RETRY_AFTER, parse_retry_after
from gateway.webhooks.signature import derive_secret, encode_secret, sign, signature_headers
from gateway.webhooks.store import WebhookStore
from tests.gateway.webhooks.receiver import LAST, OK, PATIENCE, Answer, Delivered, Receiver
from tests.ports import reserved_port

ROOT = Path(__file__).parents[3]
ADMIN = {"grants": {"anonymous": ["*:*", "admin:*"]}}
LOCAL = ["127.0.0.0/8", "::1/128"]
HOOKS = "/v1/webhooks"


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once, so that no test waits for the back-off."""
    monkeypatch.setattr(delivery, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(courier, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(courier, "SAVE_SECONDS", 0.05)


class Admin(httpx.Client):
    """Somebody who may administer."""

    def __init__(self, server: Any) -> None:
        super().__init__(base_url=server.url, timeout=PATIENCE)

    def hook(self, url: str, channels: str = "*", **more: Any) -> Any:
        made = self.post(HOOKS, json={"url": url, "channels": channels} | more)
        assert made.status_code == 201, made.text
        return made.json()

    def say(self, *contents: Any, channel: str = "lobby") -> list[Any]:
        body = "".join(json.dumps(content) + "\n" for content in contents)
        path = f"/v1/channels/{channel.replace('/', '%2F')}/messages"
        told = self.post(path, content=body, headers={"Content-Type": "application/x-ndjson"})
        return [json.loads(line) for line in told.text.splitlines()]

    def until(self, path: str, true: Callable[[Any], bool]) -> Any:
        end = time.monotonic() + PATIENCE
        while not true(found := self.get(path).json()):
            assert time.monotonic() < end, found
            time.sleep(0.01)
        return found


@pytest.fixture
def admin_of() -> Iterator[Callable[[Any], Admin]]:
    made: list[Admin] = []

    def make(server: Any) -> Admin:
        made.append(Admin(server))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def admin(make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]) -> Admin:
    return admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "attempts": 2, "timeout_seconds": 5}))


def is_genuine(secret: str, got: Delivered) -> bool:
    """Whether *got* has a signature by *secret*, computed as the specification says and not by our code."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    wanted = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return wanted in got.headers["webhook-signature"].split(" ")


# Delivered


def test_messages_come_in_order_signed_and_as_history_shows_them(
    make_process: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    """On trio; the other tests are on asyncio."""
    flags = {"auth.grants": ADMIN["grants"], "webhooks.allow_networks": LOCAL}
    admin = admin_of(make_process(loop="trio", **flags))
    with Receiver() as receiver:
        made = admin.hook(receiver.url, "news/*")
        for n in range(3):
            admin.say(*range(10 * n, 10 * n + 10), channel=f"news/{n % 2}")
            admin.say("not for the webhook", channel="lobby")
        got = receiver.until(lambda got: len(got) == 30)
    assert [each.content for each in got] == list(range(30))
    assert all(is_genuine(made["secret"], each) for each in got)
    history = admin.get("/v1/channels/news%2F1/messages?limit=1").json()["messages"][0]
    (same,) = [each for each in got if each.headers["webhook-id"] == history["id"]]
    assert same.message == history
    assert same.headers["content-type"] == "application/json"
    assert same.headers["user-agent"].startswith("Trellis/")


def test_a_webhook_may_begin_in_the_past(admin: Admin) -> None:
    first, *_ = admin.say("one", "two", "three")
    with Receiver() as all_of_it, Receiver() as some:
        admin.hook(all_of_it.url, after=0)
        admin.hook(some.url, after=first["sequence"])
        all_of_it.until(lambda got: len(got) == 3)
        some.until(lambda got: len(got) == 2)
    assert some.contents() == ["two", "three"]


def test_what_was_delivered_is_not_delivered_again_after_a_restart(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    settings = {"auth": ADMIN, "webhooks": {"allow_networks": LOCAL}}
    with Receiver() as receiver:
        admin = admin_of(make_local(**settings))
        admin.hook(receiver.url)
        admin.say(1, 2)
        receiver.until(lambda got: len(got) == 2)
        admin = admin_of(make_local(**settings))
        admin.say(3)
        receiver.until(lambda got: len(got) >= 3)
        assert [each.content for each in receiver.got] == [1, 2, 3]


def test_a_kill_loses_nothing_and_keeps_the_order(
    make_process: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    flags = {"auth.grants": ADMIN["grants"], "webhooks.allow_networks": LOCAL}

    def slowly(_got: Delivered) -> Answer:
        time.sleep(0.002)
        return OK

    with Receiver(slowly) as receiver:
        process = make_process(**flags)
        admin = admin_of(process)
        admin.hook(receiver.url)
        admin.say(*range(150))
        receiver.until(lambda got: len(got) > 20)
        process.kill()
        assert len(receiver.contents()) < 150
        make_process(**flags)
        receiver.until(lambda got: bool(got) and got[-1].content == 149)
        assert receiver.contents() == list(range(150))


@pytest.mark.parametrize("waits", ["disabled", "unreachable"])
def test_what_retention_removed_first_is_passed_over_and_logged(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], capsys: pytest.CaptureFixture[str], waits: str
) -> None:
    log = {"segment_bytes": 4096, "keep_bytes": 16_384}
    local = make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL}, log=log)
    admin, retention = admin_of(local), local.gateway.retention
    with Receiver(lambda _got: (503, {}, b"")) as receiver:
        path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
        admin.patch(path, json={"enabled": waits == "unreachable"})
        for n in range(5):
            admin.say(*(f"{n} {'x' * 200}" for _ in range(30)))
        if waits == "unreachable":
            receiver.until(lambda got: len(got) > 2)
        while local.gateway.log.segments.first_kept < 60 or retention._busy:
            local.call(retention.tick)
            time.sleep(0.02)
        receiver.answer, count = (lambda _got: OK), len(receiver.got)
        admin.patch(path, json={"enabled": True}) if waits == "disabled" else None
        newest = admin.say("the last")[0]["sequence"]
        got = receiver.until(lambda got: bool(got) and got[-1].content == "the last")[count:]
    sequences = [each.message["sequence"] for each in got if each.message["sequence"] > 60]
    kept = range(local.gateway.log.segments.first_kept, newest + 1)  # it may have removed more meanwhile
    assert sequences == sorted({*sequences, *kept}), "in order, each once, and all that is kept"
    written = capsys.readouterr()
    assert "a webhook may have missed messages" in written.out + written.err


def test_a_rebuild_of_the_index_loses_nothing(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "UNREADABLE_SECONDS", 0.05)
    local = make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL})
    admin = admin_of(local)
    with Receiver() as receiver:
        admin.hook(receiver.url)
        for n in range(4):
            admin.say(*range(50 * n, 50 * n + 50))
            local.gateway.index.rebuild()
        receiver.until(lambda got: bool(got) and got[-1].content == 199)
        assert receiver.contents() == list(range(200))
    assert local.gateway.index.rebuilds == 4


# Refused


def test_what_is_refused_becomes_a_dead_letter_and_the_rest_goes_on(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    settings = {"auth": ADMIN, "webhooks": {"allow_networks": LOCAL, "attempts": 2}}
    admin = admin_of(make_local(**settings))
    with Receiver(lambda got: (500, {}, b"secret of the receiver") if got.content == "bad" else OK) as receiver:
        path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
        said = admin.say("good", "bad", "better", "bad")
        receiver.until(lambda got: [each.content for each in got] == ["good", "bad", "bad", "better", "bad", "bad"])
        admin.until(path, lambda shown: shown["deadLetters"] == 2)
        admin = admin_of(make_local(**settings))  # they survive it
        shown = admin.get(path).json()
        assert (shown["deadLetters"], shown["enabled"]) == (2, True)
        first = admin.get(f"{path}/dead-letters?limit=1").json()
        second = admin.get(first["next"]).json()
        assert second["next"] is None
        letter = first["deadLetters"][0]
        assert [letter["sequence"], second["deadLetters"][0]["sequence"]] == [said[1]["sequence"], said[3]["sequence"]]
        assert (letter["message"], letter["channel"], letter["attempts"]) == (said[1]["id"], "lobby", 2)
        assert letter["error"] == "it answered 500"
        assert "trellis_webhook_dead_letters 2.0" in admin.get("/metrics").text
        retry = f"{path}/dead-letters/{letter['sequence']}/retry"
        assert admin.post(retry).json() == {"delivered": False, "status": 500, "error": "it answered 500"}
        receiver.answer = lambda _got: OK
        assert admin.post(retry).json() == {"delivered": True, "status": 204, "error": None}
        assert admin.post(retry).json()["code"] == "unknown-dead-letter"
        other = f"{path}/dead-letters/{said[3]['sequence']}"
        assert [admin.delete(other).status_code for _ in range(2)] == [204, 404]
        assert admin.get(path).json()["deadLetters"] == 0


def test_a_receiver_that_is_down_is_waited_for_and_nothing_becomes_a_dead_letter(admin: Admin) -> None:
    answers = iter([(503, {"Retry-After": "1"}, b""), (502, {}, b""), (429, {}, b""), (503, {}, b"")])
    with Receiver(lambda _got: next(answers, LAST)) as receiver:
        path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
        admin.say(1, 2)
        got = receiver.until(lambda got: len(got) == 6)
        assert [each.content for each in got] == [1, 1, 1, 1, 1, 2]
        assert got[1].at - got[0].at >= 1, "Retry-After is honoured"
        shown = admin.until(path, lambda shown: shown["failures"] == 0)
        assert (shown["deadLetters"], shown["failingSince"]) == (0, None)
    admin.say(3)
    shown = admin.until(path, lambda shown: shown["failures"] > 2)
    assert (shown["deadLetters"], shown["lastStatus"]) == (0, None)
    assert "cannot be reached" in shown["lastError"]


@pytest.mark.parametrize(("answer", "settings", "reason"), [
    ((410, {}, b""), {}, "it answered 410 Gone"),
    ((503, {}, b""), {"disable_after_hours": 0.00003}, "it has failed for 3e-05 hours; it answered 503"),
    ((400, {}, b""), {"attempts": 1, "max_dead_letters": 1}, "it has 1 dead letters (webhooks.max_dead_letters)"),
])  # fmt: skip
def test_a_webhook_is_disabled_and_continues_where_it_was_once_enabled(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], capsys: pytest.CaptureFixture[str],
    answer: Answer, settings: dict[str, Any], reason: str,
) -> None:  # fmt: skip
    admin = admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL} | settings))
    with Receiver(lambda _got: answer) as receiver:
        path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
        admin.say(1, 2)
        assert admin.until(path, lambda shown: not shown["enabled"])["reason"] == reason
        count = len(receiver.got)
        admin.say(3)
        assert "trellis_webhooks_disabled 1.0" in admin.get("/metrics").text
        assert len(receiver.got) == count
        receiver.answer = lambda _got: OK
        assert admin.patch(path, json={"enabled": True}).json()["reason"] is None
        receiver.until(lambda got: [each.content for each in got[count:]][-1:] == [3])
    dead = [] if answer[0] != 400 else [1]
    assert [each.content for each in receiver.got[count:]] == [n for n in (1, 2, 3) if n not in dead]
    written = capsys.readouterr()
    assert "a webhook was disabled" in written.out + written.err


# Slow and hostile receivers


def test_redirects_are_not_followed_and_endless_answers_are_not_read(admin: Admin) -> None:
    with Receiver() as other:
        redirect: Answer = (302, {"Location": other.url}, b"")
        with Receiver(lambda _got: redirect) as receiver:
            path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
            admin.say(1)
            shown = admin.until(path, lambda shown: shown.get("deadLetters") == 1)
            assert shown["lastError"] == "it answered 302 (redirects are not followed)"
            receiver.answer = lambda _got: (200, {}, None)
            admin.say(2, 3)
            got = receiver.until(lambda got: bool(got) and got[-1].content == 3)
            assert [each.content for each in got].count(2) == 1, "what comes after the status changes nothing"
        assert not other.got


def test_a_receiver_that_hangs_fails_when_its_time_is_up(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    admin = admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "timeout_seconds": 0.1}))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = f"{HOOKS}/{admin.hook(f'http://127.0.0.1:{silent.getsockname()[1]}/')['id']}"
        admin.say(1)
        shown = admin.until(path, lambda shown: shown["failures"] > 0)
        assert (shown["lastError"], shown["deadLetters"]) == ("no complete answer within 0.1 s", 0)


def test_receivers_that_hang_do_not_hold_up_others(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    admin = admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "timeout_seconds": 2 * PATIENCE}))
    over, failed, hanging = threading.Event(), set[str](), list[str]()

    def fail_then_hang(got: Delivered) -> Answer:
        if got.path in failed:
            hanging.append(got.path)
            over.wait()
        failed.add(got.path)
        return 503, {}, b""

    with Receiver(fail_then_hang) as bad, Receiver() as good:
        for number in range(courier.MAX_ATTEMPTS + 4):
            admin.hook(f"{bad.url}/{number}")
        try:
            admin.say("first")
            bad.until(lambda _got: len(hanging) >= courier.MAX_FAILING)
            admin.hook(good.url)
            for n in range(8):
                admin.say(n)
                good.until(lambda got: len(got) == n + 1)  # noqa: B023  # it is over before n changes
            assert len(hanging) == courier.MAX_FAILING, "half of the places are for those that do not fail"
        finally:
            over.set()


def test_the_loop_is_free_while_a_webhook_searches_a_long_log(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    admin = admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL}))
    for _ in range(4):
        admin.say(*range(1_000), channel="other")
    with Receiver() as receiver:
        made = admin.hook(receiver.url, "lobby", after=0)
        newest = admin.say("here")[0]["sequence"]
        receiver.until(lambda got: len(got) == 1)
        admin.say(*range(300), channel="other")
        shown = admin.until(f"{HOOKS}/{made['id']}", lambda shown: shown["position"] > newest)
        assert len(receiver.got) == 1, "what does not match passes it by"
        assert shown["failures"] == 0


# What may be reached


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1",
    "fec0::1", "ff02::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "2002:0a00:0001::1",
    "64:ff9b::a00:1", "2001:0000:4136:e378:8000:63bf:f5ff:fffe", "::127.0.0.1",
])  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
    assert not AddressPolicy((), public=True).permits(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert AddressPolicy((), public=True).permits(address)
    assert not AddressPolicy((), public=False).permits(address), "plain HTTP"


BAD_URLS = [
    "http://127.0.0.1/", "https://127.0.0.1/", "https://[::1]:8443/", "https://169.254.169.254/latest/meta-data",
    "https://[::ffff:10.0.0.1]/", "http://example.com/", "ftp://example.com/", "https:///x", "https://user@example.com/",
    "https://example.com/#x", "https://example.com:0/", "https://example.com:99999/", "https://exa mple.com/",
    "https://ex\u00e4mple.com/", "https://example.com/" + "x" * 2_100, "", "file:///etc/passwd", "https://[::1/",
    "https://a..b/", "https://" + "a" * 64 + ".example/",
]  # fmt: skip


def test_urls_that_are_refused(make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]) -> None:
    admin = admin_of(make_local(auth=ADMIN))
    for url in BAD_URLS:
        refused = admin.post(HOOKS, json={"url": url, "channels": "*"})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid-webhook"), url
    assert admin.get(HOOKS).json() == {"webhooks": []}


def test_a_name_that_leads_inside_is_refused_when_it_is_used(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]
) -> None:
    admin = admin_of(make_local(auth=ADMIN))
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.settimeout(0)
        path = f"{HOOKS}/{admin.hook(f'https://localhost:{inside.getsockname()[1]}/')['id']}"
        admin.say(1)
        shown = admin.until(path, lambda shown: shown["failures"] > 1)
        with pytest.raises(BlockingIOError):
            inside.accept()
    assert "webhooks.allow_networks" in shown["lastError"]
    assert "127" not in shown["lastError"], "it does not tell the address"


def test_a_certificate_is_verified_for_the_name(
    tmp_path: Path, make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_cert(folder=tmp_path / "certs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certs/cert.pem", tmp_path / "certs/key.pem")
    settings = {"auth": ADMIN, "webhooks": {"allow_networks": LOCAL}}
    with Receiver(context=context) as receiver:
        admin = admin_of(make_local(**settings))
        path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
        admin.say("over TLS")
        shown = admin.until(path, lambda shown: shown["failures"] > 0)
        assert "certificate is not trusted" in shown["lastError"]
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certs/ca.pem"))
        admin_of(make_local(**settings))
        receiver.until(lambda got: len(got) == 1)
        assert receiver.contents() == ["over TLS"]


# Administration


def test_only_administrators_see_and_change_webhooks(local: Any) -> None:
    for method, path in [("GET", HOOKS), ("POST", HOOKS), ("GET", f"{HOOKS}/x"), ("PATCH", f"{HOOKS}/x"),
                         ("DELETE", f"{HOOKS}/x"), ("POST", f"{HOOKS}/x/secret"), ("GET", f"{HOOKS}/x/dead-letters"),
                         ("POST", f"{HOOKS}/x/dead-letters/1/retry")]:  # fmt: skip
        refused = httpx.request(method, local.url + path)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


BAD_BODIES = [
    b"{", b"[]", b"{}", b'{"url": "https://example.com/"}', b'{"url": 1, "channels": "*"}',
    b'{"url": "https://example.com/", "channels": "a/@b"}', b'{"url": "https://example.com/", "channels": ""}',
    b'{"url": "https://example.com/", "channels": "*", "after": -1}',
    b'{"url": "https://example.com/", "channels": "*", "after": true}',
    b'{"url": "https://example.com/", "channels": "*", "more": 1}',
]  # fmt: skip


def test_bodies_that_are_no_webhook_are_refused(admin: Admin) -> None:
    for body in BAD_BODIES:
        refused = admin.post(HOOKS, content=body)
        assert refused.json()["code"] in ("malformed-content", "invalid-webhook"), body
    assert admin.get(HOOKS).json() == {"webhooks": []}


def test_webhooks_are_shown_changed_limited_and_deleted(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], tmp_path: Path
) -> None:
    admin = admin_of(make_local(auth=ADMIN, webhooks={"limit": 1, "allow_networks": LOCAL}))
    assert not (tmp_path / "data/webhooks.sqlite").exists(), "without webhooks they cost nothing"
    with Receiver() as receiver, Receiver() as other:
        made = admin.hook(receiver.url)
        path, secret = f"{HOOKS}/{made['id']}", made.pop("secret")
        assert admin.get(HOOKS).json() == {"webhooks": [made]}
        assert admin.get(path).json() == made, "the secret is shown once"
        assert admin.post(HOOKS, json={"url": other.url, "channels": "*"}).json()["code"] == "too-many-webhooks"
        newer = admin.post(f"{path}/secret").json()["secret"]
        admin.patch(path, json={"url": other.url})
        admin.say(1)
        (got,) = other.until(lambda got: len(got) == 1)
        assert newer != secret
        assert is_genuine(newer, got)
        assert is_genuine(secret, got), "for a day"
        assert admin.patch(path, json={"enabled": False}).json()["enabled"] is False
        assert admin.delete(path).status_code == 204
        assert admin.get(path).json()["code"] == "unknown-webhook"
        admin.say(2)
        admin.hook(receiver.url, after=0)
        receiver.until(lambda got: len(got) == 2)
        assert len(other.got) == 1
    assert (tmp_path / "data/webhooks.sqlite").stat().st_mode & 0o777 == 0o600
    assert secret.removeprefix("whsec_").encode() not in (tmp_path / "data/webhooks.sqlite").read_bytes()


# Parts


def test_signatures_are_those_of_the_specification() -> None:
    """The example of the libraries of Standard Webhooks."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    id, at, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    assert sign(secret, id, at, body) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    two = signature_headers([secret, b"another"], id, at, body)["webhook-signature"].split(" ")
    assert two == [sign(secret, id, at, body), sign(b"another", id, at, body)]


def test_secrets_are_derived_and_differ() -> None:
    secrets = {derive_secret(gateway, id, n) for gateway in (b"g", b"h") for id in ("a", "b") for n in (1, 2)}
    assert len(secrets) == 8
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", encode_secret(next(iter(secrets))))


def test_retry_after_is_read_in_both_forms_and_bounded() -> None:
    assert parse_retry_after("120") == 120
    assert parse_retry_after("9" * 500) == MAX_RETRY_AFTER
    later = datetime.now(UTC) + timedelta(seconds=100)
    assert 10 < parse_retry_after(format_datetime(later, usegmt=True)) <= 100
    for other in ("", "-1", "soon", "1.5", "Sun, 06 Nov 1994 08:49:37 GMT", "\u0663"):
        assert parse_retry_after(other) == 0


def test_the_back_off_doubles_with_jitter_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FIRST_RETRY_SECONDS", 1.0)
    for failures, most in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (10_000, 300)]:
        waits = [delivery.retry_seconds(failures) for _ in range(50)]
        assert most / 2 <= min(waits) < max(waits) <= most


def test_a_dead_letter_and_the_position_beyond_it_are_one_transaction(tmp_path: Path) -> None:
    store = WebhookStore(tmp_path)
    assert store.load() == []
    store.put(Webhook("wh_1", "https://example.com/", "*", 1, None, 5))
    letter = DeadLetter(9, "id", "lobby", 2, 3, "it answered 500")
    store.bury("wh_1", letter)
    store.close()
    (found,) = WebhookStore(tmp_path).load()
    assert (found.position, found.dead_letters, found.enabled) == (9, 1, True)
    again = WebhookStore(tmp_path)
    assert again.dead_letters("wh_1", 0, 10) == [letter]
    again.delete("wh_1")
    assert again.dead_letters("wh_1", 0, 10) == []
    again.close()


def test_a_backup_has_the_webhooks_of_one_moment(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "log").mkdir(parents=True)
    (data / "keys").mkdir()
    (data / "keys/gateway.json").write_text("{}")
    store = WebhookStore(data)
    store.put(Webhook("wh_1", "https://example.com/", "*", 1, None, 5))
    with ExitStack() as stack:
        sources = {source.name: source.file.read() for source in snapshot.take(data, {}, stack, tmp_path, index=False)}
    store.close()
    assert list(sources) == ["keys/gateway.json", "files/webhooks.sqlite"], "no journal"
    (tmp_path / "webhooks.sqlite").write_bytes(sources["files/webhooks.sqlite"])
    assert [webhook.id for webhook in WebhookStore(tmp_path).load()] == ["wh_1"]


def test_a_store_that_cannot_be_written_loses_no_dead_letter(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury, failures = WebhookStore.bury, iter([sqlite3.OperationalError("disk I/O error")] * 3)

    def failing(*arguments: Any) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        bury(*arguments)

    monkeypatch.setattr(WebhookStore, "bury", failing)
    monkeypatch.setattr(courier, "RETRY_SECONDS", 0.01)
    local = make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "attempts": 1})
    admin = admin_of(local)
    with Receiver(lambda got: (400, {}, b"") if got.content == 1 else OK) as receiver:
        path = f"{HOOKS}/{admin.hook(receiver.url)['id']}"
        admin.say(1, 2)
        receiver.until(lambda got: [each.content for each in got] == [1, 2])
        assert admin.get(path).json()["deadLetters"] == 1
    assert local.gateway.metrics.counts["faults"]["webhook",] == 3


def test_a_damaged_store_refuses_changes_and_nothing_else(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/webhooks.sqlite").write_bytes(b"no database" * 1_000)
    admin = admin_of(make_local(auth=ADMIN))
    refused = admin.get(HOOKS).json()
    assert "file is not a database" in refused["detail"]
    assert (refused["status"], refused["code"]) == (503, "unavailable")
    assert admin.say(1)[0]["sequence"]


# The page


def test_the_receiver_of_the_page_takes_genuine_messages_only(admin: Admin, tmp_path: Path) -> None:
    text = (ROOT / "docs/how-to/webhooks.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "receiver.py").write_text(program)
    port = reserved_port()
    url = f"http://127.0.0.1:{port}/"
    made = admin.hook(url, "news/*")
    environment = os.environ | {"WEBHOOK_SECRET": made["secret"], "PORT": str(port)}
    command = [sys.executable, str(tmp_path / "receiver.py")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            admin.say("hello", channel="news/today")
            watch = threading.Timer(PATIENCE, process.kill)
            watch.start()
            assert process.stdout.readline() == "news/today hello\n"
            watch.cancel()
            forged = signature_headers([b"another secret"], "id", int(time.time()), b"{}")
            assert httpx.post(url, content=b"{}", headers=forged).status_code == 401
        finally:
            process.kill()


def test_a_member_of_a_cluster_leaves_webhooks_of_others_to_them(tmp_path: Path) -> None:
    """A new member begins with the backup of another one, whose webhooks are in it."""
    store = WebhookStore(tmp_path)
    store.put(Webhook("wh_1", "https://example.com/", "*", 1, None, 5))
    store.close()
    berlin, paris = WebhookStore(tmp_path, "berlin"), WebhookStore(tmp_path, "paris")
    assert [webhook.id for webhook in berlin.load()] == ["wh_1"], "it was there before the gateway was a member"
    berlin.put(Webhook("wh_2", "https://example.com/", "*", 1, None, 5))
    berlin.close()
    assert (paris.load(), paris.foreign) == ([], 2)
    paris.put(Webhook("wh_3", "https://example.com/", "*", 1, None, 5))
    assert [webhook.id for webhook in paris.load()] == ["wh_3"]
    paris.delete("wh_3")
    paris.close()
    berlin = WebhookStore(tmp_path, "berlin")
    assert sorted(webhook.id for webhook in berlin.load()) == ["wh_1", "wh_2"]
    berlin.close()
