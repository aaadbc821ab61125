"""The bodies of `/v1/sync` delay no other request, and callers are checked before anything is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
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
    """A body that must not be copied as a whole."""

    def __bytes__(self) -> bytes:
        raise AssertionError

    def splitlines(self, keepends: bool = False) -> list[bytearray]:
        raise AssertionError(keepends)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_counted_before_they_are_taken_apart(http: httpx.Client, end: str) -> None:
    found = http.post("/v1/sync/import", content=end * 300)
    assert found.status_code == 422
    assert "256 lines" in found.json()["detail"]
    assert http.post("/v1/sync/import", content=("{}" + end) * 256).status_code == 200
    with pytest.raises(Problem, match="256 lines"):
        sync._count_lines(Whole(end.encode() * 300))


@pytest.mark.parametrize(
    ("body", "lines"),
    [(b"", []), (b"a", [b"a"]), (b"a\nb\r\n", [b"a", b"b"]), (b"\n\nc", [b"", b"", b"c"])],
)
def test_lines_are_taken_apart_one_by_one(body: bytes, lines: list[bytes]) -> None:
    """A copy of all lines would take as much memory as the body."""
    assert list(sync._lines(Whole(body))) == lines
    assert sync._count_lines(Whole(body)) == len(lines)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Whether a handover waits for its second message, which is for ever, and whether it no longer does."""
    waits, over, asked = Event(), Event(), count()

    async def wait(*_: object) -> None:
        if next(asked):
            waits.set()
            try:
                await anyio.sleep_forever()
            finally:
                over.set()

    monkeypatch.setattr(sync, "_wait_for_rate", wait)
    return waits, over


def test_a_handover_ends_with_its_client(http: httpx.Client, waits: tuple[Event, Event]) -> None:
    body = f"{line(1)}\n{line(2)}".encode()
    with socket.create_connection((http.base_url.host, http.base_url.port or 0), PATIENCE) as peer:
        head = f"POST /v1/sync/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        peer.sendall(head.encode() + body)
        assert waits[0].wait(PATIENCE)
        assert not waits[1].is_set()
    assert waits[1].wait(PATIENCE)


def test_a_handover_is_answered_as_the_gateway_stops(local: Any, waits: tuple[Event, Event]) -> None:
    with ThreadPoolExecutor() as pool:
        body = "\n".join(map(line, range(1, 4)))
        handing = pool.submit(httpx.post, f"{local.url}/v1/sync/import", content=body, timeout=PATIENCE)
        assert waits[0].wait(PATIENCE)
        local.call(local.gateway.goodbye)
        results = [json.loads(each) for each in handing.result().text.splitlines()]
    assert [each["status"] for each in results] == ["accepted", 503, 503]
    assert [each.get("line") for each in results] == [None, 1, 2]


def test_a_handover_waits_until_its_gateway_acts(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cluster only one gateway accepts at a time; another one would refuse the message."""
    asked, acts = Event(), Event()

    class Elsewhere:
        """A membership whose turn comes when `acts` is set."""

        @property
        def awaits_turn(self) -> bool:
            return not acts.is_set()

        async def until_acting(self) -> None:
            asked.set()
            while self.awaits_turn:
                await anyio.sleep(0.01)

    end = local.gateway.log.next_seq
    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(local.gateway, "membership", Elsewhere())
        handing = pool.submit(httpx.post, f"{local.url}/v1/sync/import", content=line(1), timeout=PATIENCE)
        assert asked.wait(PATIENCE)
        assert local.gateway.log.next_seq == end
        acts.set()
        assert [json.loads(each)["status"] for each in handing.result().text.splitlines()] == ["accepted"]
