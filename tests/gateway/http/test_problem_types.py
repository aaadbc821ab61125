"""Every problem has a type that the gateway explains."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.topic_relay.adapter import TopicRelayAdapter
from gateway.http.problem_types import CODE_OF_STATUS, PROBLEM_TYPES, markdown, uri

ROOT = Path(__file__).parents[3]
SOURCES = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]


def test_the_reference_is_made_from_the_table() -> None:
    assert (ROOT / "docs/reference/problems.md").read_text() == markdown(), "python -m gateway.http.problem_types"


def test_the_table_has_exactly_the_problems_that_are_raised() -> None:
    text = "\n".join(path.read_text() for path in SOURCES if path.name != "problem_types.py")
    raised = set(re.findall(r'Problem\(\s*"([a-z-]+)"', text))
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|forbidden|unavailable|undeliverable)"', text))
    assert raised <= set(PROBLEM_TYPES)
    assert set(PROBLEM_TYPES) <= named | set(CODE_OF_STATUS.values())


CASES = [
    ("GET", "/nothing", 404, "not-found"),
    ("GET", "/v1/nothing", 404, "not-found"),
    ("GET", "/relay", 426, "upgrade-required"),
    ("POST", "/relay", 426, "upgrade-required"),
    ("DELETE", "/readyz", 405, "method-not-allowed"),
    ("DELETE", "/v1/log", 405, "method-not-allowed"),
    ("PROPFIND", "/v1/channels", 405, "method-not-allowed"),
    ("PROPFIND", "/v1/nothing", 404, "not-found"),
    ("GET", "/problems/nothing", 404, "unknown-problem"),
    ("GET", "/v1/channels/none", 404, "unknown-channel"),
    ("GET", "/v1/channels/a%00b/messages", 404, "invalid-channel-name"),
    ("GET", "/v1/channels/%FF/messages", 400, "malformed-path"),
    ("GET", "/v1/channels?limit=0", 422, "invalid-parameter"),
    ("POST", "/v1/channels/lobby/messages", 400, "malformed-content"),
]


def test_every_error_is_a_problem_that_is_explained(make_local: Callable[..., Any]) -> None:
    with httpx.Client(base_url=make_local(adapters=(TopicRelayAdapter,)).url, timeout=20) as client:
        for method, path, status, code in CASES:
            told = client.request(method, path)
            label = f"{method} {path}"
            assert (told.status_code, told.headers["content-type"]) == (status, "application/problem+json"), label
            body = told.json()
            assert (body["type"], body["code"], body["status"]) == (uri(code), code, status), label
            explained = client.get(body["type"]).json()
            assert (explained["title"], explained["status"], explained["code"]) == (body["title"], status, code), label
            assert explained["meaning"]
            assert explained["remedy"]
            if status == 405:
                allowed = told.headers["allow"].split(", ")
                assert method not in allowed, label
                assert "GET" in allowed, label
            if status == 426:
                assert told.headers["upgrade"] == "websocket"


@pytest.mark.parametrize(
    ("path", "body", "advice"),
    [
        ("/v1/channels/lobby/messages/", b"1", "leave out the slash at the end"),
        ("/v1/nothing/", b"1", "GET /docs lists all paths"),
        ("/v1/channels/lobby/messages", b" \n", "the body is empty; send one JSON value"),
        ("/v1/channels/lobby/messages", b"hello", "send text as text/plain"),
    ],
)
def test_a_common_mistake_is_corrected(local: Any, path: str, body: bytes, advice: str) -> None:
    told = httpx.post(local.url + path, content=body, headers={"Content-Type": "application/json"})
    assert advice in told.json()["detail"]


def test_input_that_is_not_http_is_a_problem_too(local: Any) -> None:
    with socket.create_connection(("127.0.0.1", local.port), 20) as sock, sock.makefile("rb") as answer:
        sock.sendall(b"no request\r\n\r\n")
        assert b'"code":"malformed-request"' in answer.read()


def test_a_browser_gets_a_page(local: Any) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/problems", "/problems/forbidden"):
        page = httpx.get(local.url + path, headers=browser)
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<h1>" in page.text
    listed = httpx.get(f"{local.url}/problems").json()["problems"]
    assert [row["code"] for row in listed] == list(PROBLEM_TYPES)
