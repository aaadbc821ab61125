"""Webhooks deliver at least once, in order, signed and bounded, across restarts and kills."""

from __future__ import annotations

import base64
import hmac
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.webhooks import delivery
from tests.gateway.webhooks.administrator import ADMIN, HOOKS, LOCAL, Admin
from tests.gateway.webhooks.receiver import OK, PATIENCE, Answer, Delivered, Receiver

pytestmark = pytest.mark.usefixtures("haste")


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


def test_delivered_messages_are_not_delivered_again_after_a_restart(
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

    killed = threading.Event()

    def answer(got: Delivered) -> Answer:
        if got.content > 20:
            killed.wait(PATIENCE)
        return OK

    with Receiver(answer) as receiver:
        process = make_process(**flags)
        admin = admin_of(process)
        admin.hook(receiver.url)
        admin.say(*range(150))
        receiver.until(lambda got: len(got) > 20)
        process.kill()
        killed.set()
        assert len(receiver.contents()) < 150
        make_process(**flags)
        receiver.until(lambda got: bool(got) and got[-1].content == 149)
        assert receiver.contents() == list(range(150))


@pytest.mark.parametrize("waits", ["disabled", "unreachable"])
def test_undelivered_messages_that_were_retired_are_skipped_and_logged(
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


def test_invalid_webhook_bodies_are_refused(admin: Admin) -> None:
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
