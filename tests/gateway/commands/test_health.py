"""`trellis healthcheck`: ready or not, with and without TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.commands.common import CommandError
from tests.server import Server


def check(*arguments: str, **env: str) -> str:
    result = CliRunner().invoke(app, ["healthcheck", *arguments], env=env)
    if result.exception is not None:
        raise result.exception
    return result.output.strip()


def test_a_gateway_with_tls_is_ready_or_not(tmp_path: Path) -> None:
    assert (
        CliRunner().invoke(app, ["dev-cert", "--name", "elsewhere.example", "--folder", str(tmp_path)]).exit_code == 0
    )
    files = {"TRELLIS_TLS_CERT": str(tmp_path / "cert.pem"), "TRELLIS_TLS_KEY": str(tmp_path / "key.pem")}
    with Server(tmp_path / "data", env=files | {"TRELLIS_SPROUT__TLS_PORT": "0"}) as server:
        port = server.http.rpartition(":")[2]
        assert check(TRELLIS_PORT=port, TRELLIS_HOST="0.0.0.0", **files) == "ready"
        assert check("--alive", "--port", port, **files) == "alive"
    with pytest.raises(CommandError, match="the gateway does not answer"):
        check(TRELLIS_PORT=port, **files)
