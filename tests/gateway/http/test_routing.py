"""An unknown parameter of a REST request is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

# fmt: off
UNKNOWN = [
    ("GET",  "/v1/channels/lobby/messages?limt=3",        "'limt' here; did you mean 'limit'?"),
    ("GET",  "/v1/channels/lobby/messages?from_=1",       "'from_' here; did you mean 'from'?"),
    ("GET",  "/v1/channels/lobby/messages?since=1m&x=1",  "'x' here; there are after, before, limit, "),
    ("GET",  "/v1/channels?key=secret",                   "'key' here; send the key as `Authorization: Bearer KEY`"),
    ("GET",  "/v1/peers/1?after=1",                       "'after' here; this request has none"),
    ("PUT",  "/v1/channels/lobby?name=x",                 "'name' here; this request has none"),
    ("GET",  "/v1/webhooks?limit=1",                      "'limit' here; this request has none"),
]
KNOWN = [
    ("GET",  "/v1/channels?_=1764000000000"),
    ("GET",  "/v1/channels/lobby/messages?from=1&to=2&limit=1&cursor="),
    ("POST", "/v1/channels/lobby/messages?source=elsewhere"),
    ("GET",  "/?x=1"),
    ("GET",  "/problems?x=1"),
]
# fmt: on


@pytest.mark.parametrize(("method", "path", "says"), UNKNOWN)
def test_an_unknown_parameter_is_refused_with_the_nearest(local: Any, method: str, path: str, says: str) -> None:
    answer = httpx.request(method, local.url + path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter")
    assert f"there is no parameter {says}" in answer.json()["detail"]


@pytest.mark.parametrize(("method", "path"), KNOWN)
def test_known_parameters_are_accepted(local: Any, method: str, path: str) -> None:
    answer = httpx.request(method, local.url + path, content="1")
    assert answer.status_code != 422 or "there is no parameter" not in answer.text, answer.text


def test_an_unknown_path_takes_precedence_over_unknown_parameters(local: Any) -> None:
    answer = httpx.get(f"{local.url}/v1/nothing?x=1")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
