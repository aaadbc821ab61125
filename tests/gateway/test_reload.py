"""SIGHUP reloads all of the configuration or nothing, on asyncio and trio, and all certificates."""

from __future__ import annotations

import re
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from gateway.access.keyfile import KeyFile
from gateway.cli import app
from gateway.reload import LIVE, reload
from gateway.settings.settings import settings_model
from tests.server import Server
from tests.test_docs import settings as every_setting
from tests.waiting import until

SECONDS = 20.0
START = """
[auth.grants]
"rest:anonymous" = ["*:*"]
[limits.peer]
rate = 1000
burst = 5000
"""


class ReloadableGateway:
    """A gateway with a configuration and a certificate that a test can change."""

    def __init__(self, folder: Path, loop: str) -> None:
        self.folder = folder
        self.config = folder / "trellis.toml"
        self.config.write_text(START)
        self.certify("first.example")
        self.keys = KeyFile(folder / "data" / "keys" / "api-keys.json")
        self.secret = self.keys.add("ada")
        tls = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"), "--sprout-tls-port", "0")
        self.server = Server(folder / "data", "--config", str(self.config), "--loop", loop, *tls)

    def certify(self, name: str) -> None:
        """Have a new certificate, for *name*, by the same authority."""
        for file in ("cert.pem", "key.pem"):
            (self.folder / file).unlink(missing_ok=True)
        made = CliRunner().invoke(
            app, ["dev-cert", "--name", name, "--address", "127.0.0.1", "--folder", str(self.folder)]
        )
        assert made.exit_code == 0, made.output

    def hangup(self, answer: str) -> str:
        """Send SIGHUP; what the log says from then on, once *answer* is in it."""
        before = len(self.server.log)
        self.server.process.send_signal(signal.SIGHUP)
        until(lambda: answer in self.server.log[before:])
        return self.server.log[before:]

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.pem")

    def get(self, path: str, key: str | None = None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"https://{self.server.http}{path}", headers=headers, verify=self.trust).status_code

    def names(self) -> set[str]:
        """Whom the certificates on all TLS ports are for."""
        return {self._name(address) for address in (self.server.http, self.server.ready["sprout_tls"])}

    def _name(self, address: str) -> str:
        host, port = address.rsplit(":", 1)
        with (
            socket.create_connection((host, int(port)), timeout=SECONDS) as wire,
            self.trust.wrap_socket(wire, server_hostname=host) as tls,
        ):
            found: Any = tls.getpeercert()
        return next(str(value) for kind, value in found["subjectAltName"] if kind == "DNS")


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReloadableGateway]:
    made = ReloadableGateway(tmp_path_factory.mktemp(request.param), request.param)
    with made.server:
        yield made
        assert made.server.stop() == 0
    assert "Traceback" not in made.server.log
    assert made.secret not in made.server.log
    assert made.keys.load()[0].hash not in made.server.log


def test_grants_are_followed_also_on_live_connections(place: ReloadableGateway) -> None:
    assert place.get("/v1/stats") == 200
    with connect(f"wss://{place.server.http}/relay?key={place.secret}", ssl=place.trust) as steady:
        place.config.write_text(START.replace('"*:*"', '"subscribe:*"'))
        told = place.hangup("reloaded")
        assert "auth.grants" in told
        assert place.get("/v1/stats") == 401
        assert place.get("/v1/stats", place.secret) == 200
        steady.send('{"type":2,"topic":"lobby"}')
        assert steady.recv(timeout=SECONDS)
        place.config.write_text(START)
        place.hangup("reloaded")
        assert place.get("/v1/stats") == 200


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace('"*:*"', '"shout:*"'), "VERB:PATTERN"),
        (lambda text: text + "\n[", "reload is refused"),
        (
            lambda text: f"port = 1\n{text}\n[log]\nsegment_bytes = 5000",
            "log.segment_bytes: a running",
        ),
        (lambda text: text.replace("rate = 1000", "rate = -1"), "limits.peer.rate"),
        (lambda text: f"channels.create = 'configured'\n{text}", "channels.create: a running gateway cannot change"),
    ],
    ids=["a wrong right", "no TOML", "a fixed setting", "a wrong limit", "another fixed one"],
)
def test_a_fault_in_any_part_refuses_the_whole_reload(
    place: ReloadableGateway, change: Callable[[str], str], reason: str
) -> None:
    place.config.write_text(change(START.replace('"rest:anonymous"', '"sprout:anonymous"')))
    place.certify("never.example")
    told = place.hangup("reload is refused")
    assert reason in told
    assert place.get("/v1/stats") == 200, "the grant stays"
    assert "never.example" not in place.names()
    place.config.write_text(START)


def test_new_certificates_are_shown_on_every_listener_and_old_connections_stay(place: ReloadableGateway) -> None:
    with connect(f"wss://{place.server.http}/relay?key={place.secret}", ssl=place.trust) as steady:
        for name in ("second.example", "third.example"):
            place.certify(name)
            assert "new" in place.hangup("reloaded")
            assert place.names() == {name}
        steady.send('{"type":2,"topic":"lobby"}')
        assert steady.recv(timeout=SECONDS)


def test_an_invalid_certificate_is_refused_and_the_old_one_stays(place: ReloadableGateway) -> None:
    (shown,) = place.names()
    key = (place.folder / "key.pem").read_bytes()
    place.certify("other.example")
    (place.folder / "key.pem").write_bytes(key)  # of the one before
    assert "tls_cert, tls_key" in place.hangup("reload is refused")
    assert place.names() == {shown}
    place.certify("good.example")
    place.hangup("reloaded")
    assert place.names() == {"good.example"}


def test_key_changes_take_effect_without_logging_secrets(place: ReloadableGateway) -> None:
    secret = place.keys.add("bob")
    told = place.hangup("reloaded")
    assert place.get("/v1/stats", secret) == 200
    assert secret not in told
    place.keys.remove("bob")
    place.hangup("reloaded")
    assert place.get("/v1/stats", secret) == 401


def test_a_damaged_key_file_refuses_the_rest_too(place: ReloadableGateway) -> None:
    good = place.keys.path.read_bytes()
    place.keys.path.write_bytes(b"[{")
    place.config.write_text(START.replace('"*:*"', '"subscribe:*"'))
    assert "not a key file" in place.hangup("reload is refused")
    assert place.get("/v1/stats") == 200
    assert place.get("/v1/stats", place.secret) == 200
    place.keys.path.write_bytes(good)
    place.config.write_text(START)


def test_rates_are_followed(tmp_path: Path) -> None:
    config = tmp_path / "trellis.toml"
    config.write_text("[limits]\nconnections = 5\n")
    with Server(tmp_path / "data", "--config", str(config), env={"TRELLIS_LIMITS__RATES": "on"}) as server:
        statuses = [httpx.get(f"http://{server.http}/v1/channels").status_code for _ in range(5)]
        assert set(statuses) == {200}
        config.write_text("[limits.address]\nrate = 0.001\nburst = 2\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded" in server.log)
        assert re.search(r"limits\.address\.burst.*10000\.0 -> 2\.0", server.log)
        until(lambda: httpx.put(f"http://{server.http}/v1/channels/x").status_code == 429)


def test_a_log_level_change_is_logged_at_the_lower_level(tmp_path: Path) -> None:
    config = tmp_path / "trellis.toml"
    config.write_text("")
    with Server(tmp_path / "data", "--config", str(config)) as server:
        for level, told in (("error", "'info' -> 'error'"), ("info", "'error' -> 'info'")):
            config.write_text(f'log_level = "{level}"\n')
            server.process.send_signal(signal.SIGHUP)
            until(lambda told=told: told in server.log)  # type: ignore[misc]


def test_byte_rates_memory_and_retention_follow_a_reload(make_still: Callable[..., Any]) -> None:
    still = make_still(limits={"rates": "on"})
    gateway, who = still.gateway, still.caller().who
    still.say(b'"%b"' % (b"x" * 2_000))
    assert gateway.bus.read_pacer.publish_delay(who) == 0
    values: dict[str, Any] = {
        "data": gateway.settings.data,
        "limits": {"rates": "on", "bytes": {"rate": 10, "burst": 1_000}, "memory": 2 << 20},
        "log": {"keep_days": 2, "keep_bytes": 1 << 30},
    }
    changed = settings_model(())(**values)
    assert anyio.run(reload, gateway, lambda: changed)
    still.say(b'"%b"' % (b"x" * 2_000))
    assert gateway.bus.read_pacer.publish_delay(still.caller().who) > 50
    assert gateway.budget.limit == 2 << 20
    assert gateway.retention.limits == (2 * 86_400_000, 1 << 30)


def test_every_reloadable_key_is_a_setting() -> None:
    assert set(every_setting()) >= LIVE
