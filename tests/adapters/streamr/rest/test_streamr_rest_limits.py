"""REST refuses requests without reading their bodies, while the disk fails, and when memory is short."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adapters.streamr.model import streams
from gateway.core.memory_budget import MemoryBudget
from gateway.core.read_pacer import ReadPacer
from gateway.storage import log

SAID = {"id": "s"}
OPEN = {"streamr:anonymous": ("*:*", "admin:*")}


def asking(caller: Any, method: str, path: str, chunks: Iterator[bytes], **headers: str) -> tuple[int, int]:
    """The status of the answer, and how many pieces of the body were asked for; there is always another piece."""
    asked = 0
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": next(chunks, b""), "more_body": True}

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            statuses.append(event["status"])

    target, _, query = f"/api/v1{path}".partition("?")
    scope = {"type": "http", "method": method, "path": target, "raw_path": target.encode(), "scheme": "http"}
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope |= {"query_string": query.encode(), "headers": lines, "client": ("192.0.2.1", 1), "server": ("localhost", 80)}
    caller._portal.call(caller.app, scope, receive, send)
    return statuses[0], asked


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/streams/s/data", 403),
        ("POST", "/streams/s/data?signature=0x&address=0x0000000000000000000000000000000000000001", 400),
        ("POST", f"/streams/{'x' * 300}/data", 404),
        ("PUT", "/streams/s", 403),
        ("POST", "/streams/s/permissions", 403),
        ("POST", "/streams/s/fields", 403),
    ],
)
def test_requests_without_the_right_are_refused_before_the_body_is_read(
    make_broker: Callable[..., Any], make_caller: Any, method: str, path: str, status: int
) -> None:
    broker = make_broker(grants={"streamr:somebody": ("*:*",)})
    assert asking(make_caller(broker), method, path, iter([b"x" * 1_000])) == (status, 0)


def test_requests_with_an_unknown_token_are_refused_before_the_body_is_read(
    make_broker: Callable[..., Any], make_caller: Any
) -> None:
    call = make_caller(make_broker(grants={"streamr:anonymous": ("*:*",)}))
    for path in ("/streams", "/streams/s/data"):
        status, asked = asking(call, "POST", path, iter([b"x"]), authorization="Bearer nobodys")
        assert (status in (401, 403), asked) == (True, 0)


@pytest.mark.parametrize("path", ["/streams", "/streams/s/data", "/login/response"])
def test_a_body_with_an_excessive_content_length_is_not_read(broker: Any, make_caller: Any, path: str) -> None:
    for length in ("2000000", "9" * 5_000, "-1", "x"):
        assert asking(make_caller(broker), "POST", path, iter([b"x"]), **{"content-length": length}) == (413, 0)


def test_a_malformed_body_is_charged_to_its_network(broker: Any, make_caller: Any) -> None:
    pacer, charges = ReadPacer(None, lambda: 0.0), list[tuple[str, int]]()
    pacer.charge_malformed_body = lambda network, size: charges.append((network, size))  # type: ignore[method-assign]
    broker.bus.read_pacer, call = pacer, make_caller(broker)
    for path in ("/login/response", "/streams/s/data"):
        assert call("POST", path, content=b"nope").status_code == 400
        assert charges.pop() == ("192.0.2.1", 4), path
    assert call("POST", "/login/response", content=b"{}").status_code == 400
    assert call("POST", "/streams/s/data", content=b"{}").status_code == 200
    assert charges == []


def test_a_body_counts_in_the_memory_budget_and_is_refused_if_it_is_short(broker: Any, make_caller: Any) -> None:
    budget = MemoryBudget(100_000)
    broker.bus.read_pacer = ReadPacer(None, lambda: 0.0, budget)
    held: list[int] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(5):
            held.append(budget.held)
            budget.audit()
            yield b"x" * 40_000

    status, asked = asking(make_caller(broker), "POST", "/streams/s/data", chunks())
    assert held == [0, 40_000, 80_000]
    assert status == 503
    assert asked <= 5
    assert budget.held == 0


# Where the disk fails


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/streams", {"id": "new", "partitions": 2}),
        ("PUT", "/streams/s", {"partitions": 3}),
        ("DELETE", "/streams/s", None),
        ("POST", "/streams/s/permissions", {"operation": "stream_get", "anonymous": True}),
        ("DELETE", "/streams/s/permissions/1", None),
        ("POST", "/streams/s/data", 1),
    ],
)
def test_requests_that_need_the_disk_are_refused_while_it_fails(
    make_broker: Callable[..., Any], make_caller: Any, method: str, path: str, body: Any
) -> None:
    broker = make_broker(grants=OPEN)
    call = make_caller(broker)
    assert call("POST", "/streams", json=SAID | {"partitions": 2}).status_code == 200
    broker.core.log.failing = "No space left on device"
    before = broker.core.log.next_seq
    answer = call(method, path, json=body)
    assert answer.status_code == 503
    assert "No space left on device" in answer.text
    assert broker.core.log.next_seq == before, "nothing waits to be written"


def test_waiting_requests_answer_503_when_the_disk_begins_to_fail(
    broker: Any, make_caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = make_caller(broker)
    assert call("GET", "/streams").status_code == 200
    monkeypatch.setattr(log, "UNCERTAIN_SECONDS", 0.2)

    def write(_entries: Any, _lines: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broker.core.log._writer, "write", write)
    answer = call("POST", "/streams", json=SAID)
    monkeypatch.undo()
    assert answer.status_code == 503
    assert "the log cannot be written" in answer.json()["message"]


# Descriptions


def test_a_description_that_is_forgotten_makes_room_also_after_a_restart(
    make_broker: Callable[..., Any], make_caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_DESCRIBED", 2)

    def describe(call: Any, name: str) -> int:
        return int(call("POST", "/streams", json={"id": name, "partitions": 2}).status_code)

    first = make_broker(grants=OPEN)
    call = make_caller(first)
    assert [describe(call, name) for name in "abc"] == [200, 200, 422]
    assert call("DELETE", "/streams/a").status_code == 204
    assert [describe(call, name) for name in "cd"] == [200, 422]
    assert call("DELETE", "/streams/b").status_code == 204
    first.core.settle()
    again = make_caller(make_broker(grants=OPEN))
    assert [describe(again, name) for name in "de"] == [200, 422]


def test_an_oversized_body_is_refused_in_json(broker: Any, make_caller: Any) -> None:
    answer = make_caller(broker)("POST", "/streams", content=b"x" * (1 << 17))
    assert answer.status_code == 413
    assert json.loads(answer.content)["code"] == "TOO_LARGE"
    assert answer.headers["connection"] == "close"
