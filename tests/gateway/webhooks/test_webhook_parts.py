"""The parts of webhooks by themselves: signatures, back-off, the store; and the page about them."""

from __future__ import annotations

import base64
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backup import snapshot
from gateway.webhooks import courier
from gateway.webhooks.model import DeadLetter, Webhook
from gateway.webhooks.sender import MAX_RETRY_AFTER, parse_retry_after
from gateway.webhooks.signature import derive_secret, encode_secret, sign, signature_headers
from gateway.webhooks.store import WebhookStore
from tests.gateway.webhooks.administrator import ADMIN, HOOKS, LOCAL, Admin
from tests.gateway.webhooks.receiver import OK, PATIENCE, Receiver
from tests.ports import reserved_port

pytestmark = pytest.mark.usefixtures("haste")

ROOT = Path(__file__).parents[3]


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
    zone = f"Mon, 01 Jan 2020 00:00:00 +{'9' * 20}"  # the receiver would otherwise be asked again without a pause
    for other in ("", "-1", "soon", "1.5", "Sun, 06 Nov 1994 08:49:37 GMT", "\u0663", zone, zone.replace("+", "-")):
        assert parse_retry_after(other) == 0


def test_a_dead_letter_and_the_position_beyond_it_are_one_transaction(tmp_path: Path) -> None:
    store = WebhookStore(tmp_path)
    assert store.load() == []
    store.put(Webhook("wh_1", "https://example.com/", "*", 1, None, 5))
    letter = DeadLetter(9, "id", "lobby", 2, 3, "it answered 500")
    store.add_dead_letter("wh_1", letter)
    store.close()
    (found,) = WebhookStore(tmp_path).load()
    assert (found.position, found.dead_letters, found.enabled) == (9, 1, True)
    again = WebhookStore(tmp_path)
    assert again.dead_letters("wh_1", 0, 10) == [letter]
    assert [again.delete_dead_letter("wh_1", 9) for _ in range(2)] == [True, False], "two requests count as one"
    again.add_dead_letter("wh_1", letter)
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
    add_dead_letter, failures = WebhookStore.add_dead_letter, iter([sqlite3.OperationalError("disk I/O error")] * 3)

    def failing(*arguments: Any) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        add_dead_letter(*arguments)

    monkeypatch.setattr(WebhookStore, "add_dead_letter", failing)
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
