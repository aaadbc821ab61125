"""TLS, and credentials of NATS servers, which are read from keys and files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from gateway.cli import app
from gateway.jetstream.connecting import JetStreamSettings, UnfitStream
from gateway.jetstream.credentials import BadCredentials, Credentials, read_credentials
from gateway.jetstream.short_connection import append, short_connection
from tests.gateway.jetstream.test_stream import StreamReader
from tests.nats import NatsServer
from tests.waiting import until

# The example of nkeys in the documentation of NATS; its public key is what `nk -inkey FILE -pubout` prints.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def tls_server(data: Path, folder: Path) -> NatsServer:
    """A server with the certificate in *folder*, for ann and for the key `SEED`."""
    users = f"""
tls {{ cert_file: "{folder}/cert.pem", key_file: "{folder}/key.pem" }}
authorization {{ users: [ {{ user: ann, password: sesame }}, {{ nkey: {PUBLIC} }} ] }}
"""
    return NatsServer(data, more=users)


def refused_settings(right: Path, wrong: Path, key: Path) -> dict[str, tuple[object, ...]]:
    """User, authorities and credentials that do not connect, by what is said of them."""
    return {
        "the certificate of the server is not trusted (unable to get local issuer certificate)": (
            "ann:sesame@",
            wrong,
        ),
        "the server refuses the credentials: see cluster.credentials, or the user and password in cluster.url": (
            *("ann:open@", right),
        ),
        f"cluster.credentials: {right} holds no key of a NATS user (a line that begins with SU)": (
            *("", right, right),
        ),
        f"cluster.authorities: {key} has no certificates": ("ann:sesame@", key),
    }


def test_tls_and_credentials_are_used_and_errors_are_one_line(tmp_path: Path) -> None:
    for folder in ("right", "wrong"):
        assert CliRunner().invoke(app, ["dev-cert", "--folder", str(tmp_path / folder)]).exit_code == 0
    right, wrong = (tmp_path / folder / "ca.pem" for folder in ("right", "wrong"))
    (key := tmp_path / "user.nk").write_text(f"{SEED}\n")
    server = tls_server(tmp_path / "nats", tmp_path / "right")
    members = list[StreamReader]()

    def settings(user: str, authorities: Path, credentials: Path | None = None) -> JetStreamSettings:
        url = f"tls://{user}127.0.0.1:{server.port}"
        return JetStreamSettings("main", (url,), 1, authorities, credentials)

    def member(*about: object) -> StreamReader:
        members.append(StreamReader(settings(*about)))  # type: ignore[arg-type]
        return members[-1]

    async def visited(*about: object) -> int:
        async with short_connection(settings(*about)) as client:  # type: ignore[arg-type]
            return await append(client, "main", b"by a command")

    try:
        ann, keyed = member("ann:sesame@", right), member("", right, key)
        ann.stream.submit(b"1 by TLS")
        until(lambda: ann.data == keyed.data == [b"1 by TLS"])
        assert ann.stream.status().server == f"127.0.0.1:{server.port}", "without the password"
        refused = refused_settings(right, wrong, key)
        for text, about in refused.items():
            faulty = member(*about)
            until(lambda faulty=faulty: faulty.faults)  # type: ignore[misc]
            assert faulty.faults[0].startswith(text)
            with pytest.raises(UnfitStream) as error:
                asyncio.run(visited(*about))
            assert str(error.value).startswith(text)
        assert asyncio.run(visited("", right, key)) == 2
    finally:
        for each in members:
            each.stream.stop()
        server.stop()


def test_credentials_are_read_from_keys_and_from_files_with_a_token(tmp_path: Path) -> None:
    path = tmp_path / "user.creds"
    lines = ["-----BEGIN NATS USER JWT-----", "head.claims.mac", "------END NATS USER JWT------", "", "*** secret ***"]
    path.write_text("\n".join([*lines, "-----BEGIN USER NKEY SEED-----", SEED, "------END USER NKEY SEED------"]))
    found = read_credentials(path)
    assert (found.public, found.token) == (PUBLIC, "head.claims.mac")
    assert found.options()["user_jwt_cb"]() == b"head.claims.mac"
    path.write_text(SEED.replace("CSSL", "CSSM"))
    with pytest.raises(BadCredentials, match=r"the key in .* is damaged"):
        read_credentials(path)
    with pytest.raises(BadCredentials, match="cannot be read"):
        read_credentials(tmp_path / "missing")
    assert Credentials(Ed25519PrivateKey.generate(), "").options().keys() == {"signature_cb"}
