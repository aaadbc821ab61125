"""`trellis dev-cert`: its certificates are trusted only by clients that trust its authority."""

from __future__ import annotations

import socket
import ssl
import stat
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs
from typer.testing import CliRunner

from adapters import ADAPTERS
from gateway.cli import app
from gateway.commands import certificates
from gateway.core.errors import OperatorError
from gateway.listeners.certificate import Certificate
from gateway.settings.config import BadConfiguration, load
from tests.server import Server


def dev_cert(folder: Path, *arguments: str) -> int:
    result = CliRunner().invoke(app, ["dev-cert", "--folder", str(folder), *arguments])
    if isinstance(result.exception, OperatorError):
        return 1
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code


def ask(address: str, name: str, authority: Path | None) -> bytes:
    """Say a version in Sprout over TLS; the answer."""
    context = ssl.create_default_context(cafile=authority)
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=name) as line,
    ):
        line.sendall(b"version 7 0.0\n")
        return line.recv(100)


def test_a_gateway_serves_https_and_sprout_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert dev_cert(folder) == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes.keys() == {"ca.pem", "ca-key.pem", "cert.pem", "key.pem"}
    assert modes["key.pem"] == modes["ca-key.pem"] == 0o600
    files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"), "--sprout-tls-port", "0")
    with Server(tmp_path / "data", *files) as server:
        secure, trust = server.ready["sprout_tls"], folder / "ca.pem"
        assert ask(secure, "127.0.0.1", trust) == ask(secure, "localhost", trust) == b"status 7 0\n"
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(secure, "127.0.0.1", None)
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(secure, "elsewhere.example", trust)
        answer = httpx.get(f"https://{server.http}/healthz", verify=ssl.create_default_context(cafile=trust))
        assert answer.json() == {"status": "alive"}
        assert f"{server.sprout} (TCP), {secure} (TLS)" in server.log


def test_errors_explain_how_to_trust_the_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dev_cert(tmp_path) == 0
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with Server(tmp_path / "data", *files, "--sprout-tls-port", "0") as server:
        command = ["community", "new", "lobby", "--gateway", f"https://{server.http}"]
        refused = CliRunner().invoke(app, command)
        assert isinstance(refused.exception, OperatorError)
        assert "SSL_CERT_FILE" in str(refused.exception)
        plain = CliRunner().invoke(app, ["status", "--gateway", f"http://{server.http}"])
        assert str(plain.exception).endswith("if it speaks TLS, try https:// in place of http://")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert "SHA512_B32__" in CliRunner().invoke(app, command).stdout


def issue(folder: Path, skew: timedelta, days: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A certificate for this machine that begins *skew* before now and ends after *days*."""
    monkeypatch.setattr(certificates, "SKEW", skew)
    assert dev_cert(folder, "--days", str(max(1, days))) == 0
    authority = certificates._authority(folder / "ca.pem", folder / "ca-key.pem")
    made = certificates._issue("here", [certificates._subject("127.0.0.1")], days, authority)
    certificates._write(made, folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize(
    ("begun", "days", "said"),
    [
        (2, -1, ["the certificate has expired"]),
        (-1, 9, ["the certificate is not valid yet"]),
        (2, 9, ["the certificate expires soon"]),
        (2, 20, []),
    ],
)
def test_the_log_warns_of_certificates_outside_their_validity(
    begun: int, days: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = issue(tmp_path, timedelta(days=begun), days, monkeypatch)
    with capture_logs() as lines:
        Certificate(load(ADAPTERS, None, {"tls_cert": certificate, "tls_key": key}))
    assert [line["event"] for line in lines] == said


def test_an_expired_certificate_gets_no_advice_to_trust_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = issue(tmp_path, timedelta(days=2), -1, monkeypatch)
    files = ("--tls-cert", str(certificate), "--tls-key", str(key), "--sprout-tls-port", "0")
    with Server(tmp_path / "data", *files) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        refused = CliRunner().invoke(app, ["status", "--gateway", f"https://{server.http}"])
        assert "certificate has expired" in str(refused.exception)
        assert "dev-cert" not in str(refused.exception)


def test_names_and_addresses_are_those_that_were_asked_for(tmp_path: Path) -> None:
    assert dev_cert(tmp_path, "--name", "arbor.example", "--name", "*.example.org", "--address", "10.0.0.7") == 0
    found = ssl._ssl._test_decode_cert(str(tmp_path / "cert.pem"))  # type: ignore[attr-defined]
    assert set(found["subjectAltName"]) == {
        ("DNS", "arbor.example"),
        ("DNS", "*.example.org"),
        ("IP Address", "10.0.0.7"),
    }


def test_nothing_is_overwritten_and_an_authority_serves_again(tmp_path: Path) -> None:
    assert dev_cert(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert dev_cert(tmp_path) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for file in ("cert.pem", "key.pem"):
        (tmp_path / file).rename(tmp_path / f"first-{file}")
    assert dev_cert(tmp_path, "--name", "two.example") == 0
    assert (tmp_path / "ca.pem").read_bytes() == before["ca.pem"]
    (tmp_path / "cert.pem").unlink()
    (tmp_path / "key.pem").unlink()
    (tmp_path / "ca-key.pem").write_bytes(before["key.pem"])
    assert dev_cert(tmp_path) == 1  # not the authority's key
    (tmp_path / "ca-key.pem").unlink()
    assert dev_cert(tmp_path) == 1
    assert dev_cert(tmp_path / "none", "--name", "größe") == 2


def test_a_certificate_that_is_of_no_use_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    assert dev_cert(tmp_path / "one") == dev_cert(tmp_path / "other") == 0
    certificate, key = tmp_path / "one/cert.pem", tmp_path / "one/key.pem"
    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a passphrase"))
    (locked := tmp_path / "locked.pem").write_bytes(load_pem_private_key(key.read_bytes(), None).private_bytes(*form))
    (nonsense := tmp_path / "nonsense.pem").write_text("nonsense")
    for pair in ((nonsense, nonsense), (certificate, tmp_path / "other/key.pem"), (certificate, locked)):
        with pytest.raises(BadConfiguration, match="tls_cert, tls_key: no certificate and its key"):
            load(ADAPTERS, None, dict(zip(("tls_cert", "tls_key"), pair, strict=True)))
    assert load(ADAPTERS, None, {"tls_cert": certificate, "tls_key": key}).tls_cert == certificate
