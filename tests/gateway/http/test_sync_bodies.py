"""The bodies of `/v1/sync` delay no other request, and callers are checked before anything is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import anyio
import httpx
import pytest

from gateway.http import sync
from gateway.http.bodies import SHORT_BODY
from gateway.http.problems import Problem
from tests.gateway.http.rest_requests import PATIENCE

LONG = json.dumps("x" * (2 * SHORT_BODY))


def line(number: int, channel: str = "handed") -> str:
    name = f"01900000-0000-7000-8000-{number:012}"
    row = {"id": name, "channel": channel, "protocol": "rest", "timestamp": 1, "content": "x" * SHORT_BODY}
    return json.dumps(row)


def test_a_handover_that_waits_does_not_hold_up_other_long_bodies(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = Event(), Event()

    async def wait(*_: object) -> None:
        begun.set()
        while not over.is_set():
            await anyio.sleep(0.01)

    monkeypatch.setattr(sync, "_wait_for_rate", wait)
    with ThreadPoolExecutor() as pool:
        handing = pool.submit(httpx.post, f"{http.base_url}/v1/sync/import", content=line(1), timeout=PATIENCE)
        try:
            assert begun.wait(PATIENCE)
            posted = http.post("/v1/channels/others/messages", content=LONG, timeout=PATIENCE / 2)
            assert posted.status_code == 201
        finally:
            over.set()
        assert [json.loads(each)["status"] for each in handing.result().text.splitlines()] == ["accepted"]


def test_a_caller_that_may_not_publish_is_refused_without_waiting_for_its_rate(
    make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def wait(_: object, channel: str) -> None:
        asked.append(channel)

    monkeypatch.setattr(sync, "_wait_for_rate", wait)
    local = make_local(auth={"grants": {"rest:anonymous": ["publish:mine"]}})
    body = "\n".join((line(1, "mine"), line(2, "others")))
    found = httpx.post(f"{local.url}/v1/sync/import", content=body, timeout=PATIENCE)
    assert [json.loads(each)["status"] for each in found.text.splitlines()] == ["accepted", 401]
    assert asked == ["mine"]


def test_a_body_is_not_read_without_any_publish_right(make_local: Callable[..., Any]) -> None:
    local = make_local(auth={"grants": {"rest:anonymous": ["history:*"]}})
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as peer:
        peer.sendall(b"POST /v1/sync/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n")
        assert peer.recv(12) == b"HTTP/1.1 401"


class Whole(bytearray):
    """A body that must not be taken apart."""

    def __bytes__(self) -> bytes:
        raise AssertionError

    def splitlines(self, keepends: bool = False) -> list[bytearray]:
        raise AssertionError(keepends)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_are_counted_before_they_are_taken_apart(http: httpx.Client, end: str) -> None:
    found = http.post("/v1/sync/import", content=end * 300)
    assert found.status_code == 422
    assert "256 lines" in found.json()["detail"]
    assert http.post("/v1/sync/import", content=("{}" + end) * 256).status_code == 200
    with pytest.raises(Problem, match="256 lines"):
        sync._lines(Whole(end.encode() * 300))
