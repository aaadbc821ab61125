"""Allowed origins may read REST answers, and others get no CORS header."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.access.origins import Origins

FRIEND, EVIL = "https://friend.example", "https://evil.example"
ASK = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@pytest.fixture
def url(make_local: Callable[..., Any]) -> str:
    return f"{make_local(auth={'origins': [FRIEND]}).url}/v1/channels"


def cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control")}


def test_an_allowed_page_may_ask_and_read(url: str) -> None:
    asked = httpx.options(f"{url}/lobby/messages", headers={"Origin": FRIEND, **ASK})
    assert asked.status_code == 204
    assert cors(asked)["access-control-allow-origin"] == FRIEND
    allowed = cors(asked)["access-control-allow-headers"]
    assert allowed == "Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
    said = httpx.post(f"{url}/lobby/messages", json=1, headers={"Origin": FRIEND})
    refused = httpx.get(f"{url}/lobby/messages/nothing", headers={"Origin": FRIEND})
    assert (said.status_code, refused.status_code) == (201, 404)
    for response in (said, refused):
        assert response.headers["access-control-allow-origin"] == FRIEND
        assert response.headers["vary"] == "Origin"
        assert "Retry-After" in response.headers["access-control-expose-headers"]
    with httpx.stream("GET", f"{url}/lobby/events", headers={"Origin": FRIEND}) as stream:
        assert stream.headers["access-control-allow-origin"] == FRIEND
    assert "access-control-allow-credentials" not in {**cors(asked), **cors(said)}


def test_an_allowed_page_may_use_every_method_of_rest(url: str) -> None:
    asked = httpx.options(f"{url}/lobby/messages", headers={"Origin": FRIEND, **ASK})
    allowed = cors(asked)["access-control-allow-methods"].split(", ")
    paths = httpx.get(url.replace("/v1/channels", "/openapi.json")).json()["paths"]
    used = {method.upper() for path, operations in paths.items() if path.startswith("/v1/") for method in operations}
    assert used == set(allowed)


def test_an_allowed_page_may_load_the_client_and_no_other_page_of_the_console(url: str) -> None:
    console = url.replace("/v1/channels", "/console")
    for origin, name, status, allowed in (
        (FRIEND, "trellis.js", 200, FRIEND),
        (FRIEND, "key.js", 200, None),
        (EVIL, "trellis.js", 403, None),
    ):
        response = httpx.get(f"{console}/{name}", headers={"Origin": origin})
        assert (response.status_code, cors(response).get("access-control-allow-origin")) == (status, allowed)


@pytest.mark.parametrize("origin", [EVIL, "null", "https://friend.example.evil"])
def test_a_refused_page_gets_no_header(url: str, origin: str) -> None:
    for response in (
        httpx.options(f"{url}/lobby/messages", headers={"Origin": origin, **ASK}),
        httpx.get(url, headers={"Origin": origin}),
    ):
        assert (response.status_code, cors(response), response.headers["vary"]) == (403, {}, "Origin")


def test_requests_without_an_origin_get_no_cors_header(url: str) -> None:
    assert cors(httpx.get(url)) == {}
    assert httpx.options(url).status_code == 405, "a request without an origin is no preflight"


def test_origins_follow_a_reload_and_a_star_never_allows_credentials(make_local: Callable[..., Any]) -> None:
    local = make_local(auth={"origins": [FRIEND]})
    assert cors(httpx.get(f"{local.url}/v1/channels", headers={"Origin": EVIL})) == {}
    local.gateway.access.origins = Origins(["*"])
    found = cors(httpx.get(f"{local.url}/v1/channels", headers={"Origin": EVIL}))
    assert found["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in found


def test_preflights_are_charged_as_requests(make_local: Callable[..., Any]) -> None:
    rates = {"rates": "on", "address": {"rate": 0.001, "burst": 1}}
    local = make_local(auth={"origins": [FRIEND]}, limits=rates)
    first, second = (httpx.options(f"{local.url}/v1/channels", headers={"Origin": FRIEND, **ASK}) for _ in range(2))
    assert (first.status_code, second.status_code) == (204, 429)
    assert second.headers["access-control-allow-origin"] == FRIEND
