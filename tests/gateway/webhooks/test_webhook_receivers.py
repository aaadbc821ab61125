"""Receivers that refuse, hang or lie are handled, and only public addresses are reached."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.commands.certificates import dev_cert
from gateway.webhooks import courier
from gateway.webhooks.addresses import AddressPolicy, is_public
from tests.gateway.webhooks.administrator import ADMIN, HOOKS, LOCAL, Admin
from tests.gateway.webhooks.receiver import LAST, OK, PATIENCE, Answer, Delivered, Receiver

pytestmark = pytest.mark.usefixtures("haste")


# Refused


def test_a_refused_message_becomes_a_dead_letter_and_others_follow(
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


def test_a_retry_ends_when_its_client_leaves(make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]) -> None:
    """It went on until the receiver's time was over, with one of the places that all webhooks share."""
    hanging, ended = threading.Event(), threading.Event()

    def run(listener: socket.socket) -> None:
        while not ended.is_set():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                if not hanging.is_set():
                    connection.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    continue
                while connection.recv(1 << 16):  # until the gateway hangs up
                    pass
                ended.set()

    webhooks = {"allow_networks": LOCAL, "attempts": 2, "timeout_seconds": 2 * PATIENCE}
    admin = admin_of(make_local(auth=ADMIN, webhooks=webhooks))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=run, args=(listener,), daemon=True).start()
        path = f"{HOOKS}/{admin.hook(f'http://127.0.0.1:{listener.getsockname()[1]}/')['id']}"
        (said,) = admin.say("bad")
        admin.until(path, lambda shown: shown["deadLetters"] == 1)
        hanging.set()
        with pytest.raises(httpx.ReadTimeout):
            admin.post(f"{path}/dead-letters/{said['sequence']}/retry", timeout=0.5)
        assert ended.wait(PATIENCE)


def test_an_unavailable_receiver_is_retried_without_dead_letters(admin: Admin) -> None:
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
def test_a_disabled_webhook_continues_at_its_position_once_enabled(
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


def test_a_receiver_that_hangs_times_out(make_local: Callable[..., Any], admin_of: Callable[[Any], Admin]) -> None:
    admin = admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "timeout_seconds": 0.1}))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = f"{HOOKS}/{admin.hook(f'http://127.0.0.1:{silent.getsockname()[1]}/')['id']}"
        admin.say(1)
        shown = admin.until(path, lambda shown: shown["failures"] > 0)
        assert (shown["lastError"], shown["deadLetters"]) == ("no complete answer within 0.1 s", 0)


def check_deliveries(admin: Admin, receiver: Receiver) -> None:
    """Each message reaches *receiver*, which becomes a webhook."""
    admin.hook(receiver.url)
    for n in range(8):
        admin.say(n)
        receiver.until(lambda got: len(got) == n + 1)  # noqa: B023  # it is over before n changes


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
            bad.until(lambda _got: len(hanging) >= courier.MAX_DOUBTFUL)
            check_deliveries(admin, good)
            assert len(hanging) == courier.MAX_DOUBTFUL, "half of the places are for those that do not fail"
        finally:
            over.set()


def test_receivers_that_answer_slowly_do_not_hold_up_others(
    make_local: Callable[..., Any], admin_of: Callable[[Any], Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never fail, since they answer just in time, and some answers are quick."""
    monkeypatch.setattr(courier, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(courier, "SLOW_FACTOR", 10**9)
    admin = admin_of(make_local(auth=ADMIN, webhooks={"allow_networks": LOCAL, "timeout_seconds": 2 * PATIENCE}))
    over, slow = threading.Event(), list[str]()

    def take_long(got: Delivered) -> Answer:
        if got.content == "third":
            slow.append(got.path)
            over.wait()
        return OK

    with Receiver(take_long) as bad, Receiver() as good:
        hooks = [admin.hook(f"{bad.url}/{number}")["id"] for number in range(courier.MAX_ATTEMPTS + 4)]
        try:
            for content in ("slow", "quick"):
                said = admin.say(content)[0]["sequence"]
                for hook in hooks:
                    admin.until(f"{HOOKS}/{hook}", lambda shown: shown["position"] >= said)  # noqa: B023  # it is called here
                monkeypatch.setattr(courier, "SLOW_SECONDS", 2 * PATIENCE)
            admin.say("third")
            bad.until(lambda _got: len(slow) >= courier.MAX_DOUBTFUL)
            check_deliveries(admin, good)
            assert len(slow) == courier.MAX_DOUBTFUL
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


def test_a_name_that_resolves_to_a_private_address_is_refused_at_use(
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
