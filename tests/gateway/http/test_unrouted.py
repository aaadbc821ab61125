"""A WebSocket at an unknown path is refused with the paths that exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.server import Server


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("unrouted"), "--loop", request.param) as server:
        yield server


def refusal(server: Server, path: str, origin: str | None = None) -> tuple[int, str, str]:
    with pytest.raises(InvalidStatus) as refused, connect(f"ws://{server.http}{path}", origin=origin):  # type: ignore[arg-type]
        pass
    response = refused.value.response
    return response.status_code, response.headers["content-type"], response.body.decode()


@pytest.mark.parametrize("path", ["/ws", "/relay/", "/v1/", "/v1/channels", "/api/v1/wss?controlLayerVersion=1"])
def test_a_websocket_at_an_unknown_path_is_refused_with_the_known_paths(server: Server, path: str) -> None:
    status, media_type, body = refusal(server, path)
    assert (status, media_type) == (404, "application/problem+json")
    assert f"there is no WebSocket at '{path.partition('?')[0]}'; connect to one of /, " in body
    for known in ("/api/v1/ws", "/network", "/relay", "/tracker", "/v1/ws"):
        assert known in body


def test_a_foreign_origin_is_refused_without_the_known_paths(server: Server) -> None:
    status, _, body = refusal(server, "/ws", "https://evil.example")
    assert status == 403
    assert "foreign-origin" in body
    assert "/tracker" not in body


def test_a_websocket_at_an_unknown_path_is_charged_for_each_attempt(tmp_path: Path) -> None:
    env = {"TRELLIS_LIMITS__RATES": "on", "TRELLIS_LIMITS__ADDRESS": '{"rate": 0.001, "burst": 2}'}
    with Server(tmp_path, env=env) as server:
        assert [refusal(server, "/ws")[0] for _ in range(3)] == [404, 404, 429]
