"""Administrators manage API keys over REST, and at least one key of theirs remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.access.authorization import KeyFile


@pytest.fixture
def ask(tmp_path: Path, make_local: Callable[..., Any]) -> Iterator[Callable[..., httpx.Response]]:
    """Asks as `root`, who may administer, unless another key is given."""
    root = KeyFile(tmp_path / "data/keys/api-keys.json").add("root", ["*:*", "admin:*"])
    with httpx.Client(base_url=make_local().url, timeout=30) as client:

        def ask(method: str, path: str, key: str = root, **options: Any) -> httpx.Response:
            return client.request(method, path, headers={"Authorization": f"Bearer {key}"}, **options)

        yield ask


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_a_key_is_made_used_rotated_and_removed(ask: Callable[..., httpx.Response]) -> None:
    made = ask("POST", "/v1/keys", json={"name": "ada/b", "rights": ["history:*"]})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    secret = made.json()["secret"]
    assert ask("GET", "/v1/stats", secret).status_code == 200, "it works at once"
    listed = {key["name"]: key for key in ask("GET", "/v1/keys").json()["keys"]}
    assert listed["ada/b"]["rights"] == ["history:*"]
    assert listed["ada/b"]["lastUsed"] > 0
    assert secret not in ask("GET", "/v1/keys").text
    renewed = ask("POST", "/v1/keys/ada%2Fb/rotate", json={"overlapSeconds": 0}).json()["secret"]
    assert ask("GET", "/v1/stats", secret).status_code == 401
    assert ask("GET", "/v1/stats", renewed).status_code == 200
    assert ask("DELETE", "/v1/keys/ada%2Fb").status_code == 204
    assert ask("GET", "/v1/stats", renewed).status_code == 401
    assert refused(ask("DELETE", "/v1/keys/ada%2Fb")) == (404, "unknown-key-name")


def test_a_key_of_the_command_line_works_at_once(ask: Callable[..., httpx.Response], tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "data/keys/api-keys.json")
    for number in range(5):  # the gateway looks at the file once a second by itself
        assert ask("GET", "/v1/stats", file.add(f"ada {number}")).status_code == 200
    assert ask("GET", "/v1/stats", "of nobody").status_code == 401


def test_invalid_keys_are_refused(ask: Callable[..., httpx.Response]) -> None:
    assert refused(ask("DELETE", "/v1/keys/root")) == (409, "own-key")
    for body in ({"name": "root"}, {"name": "a", "rights": ["fly:*"]}, {"name": "a", "rights": ["!publish:*"]}):
        assert refused(ask("POST", "/v1/keys", json=body)) == (422, "invalid-key"), body
    for content in (b"{", b"[]", b'{"name": ""}', b'{"name": "a", "x": 1}', b'{"name": "a", "expires": 0}'):
        assert refused(ask("POST", "/v1/keys", content=content)) == (422, "invalid-key"), content
    assert refused(ask("POST", "/v1/keys/none/rotate", json={})) == (404, "unknown-key-name")
    assert refused(ask("POST", "/v1/keys", content=b" " * (1 << 17))) == (413, "content-too-long")
    assert [key["name"] for key in ask("GET", "/v1/keys").json()["keys"]] == ["root"]


def test_only_administrators_manage_keys(
    ask: Callable[..., httpx.Response], local_paths: list[tuple[str, str]]
) -> None:
    plain = ask("POST", "/v1/keys", json={"name": "ada"}).json()["secret"]
    part = ask("POST", "/v1/keys", json={"name": "bob", "rights": ["admin:lobby"]}).json()["secret"]
    for method, path in local_paths:
        for key in (plain, part):
            assert refused(ask(method, path, key, content=b"{}")) == (403, "forbidden"), path
        assert refused(ask(method, path, "wrong", content=b"{}")) == (401, "unknown-key"), path


@pytest.fixture
def local_paths() -> list[tuple[str, str]]:
    return [
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/keys/root/rotate"),
        ("DELETE", "/v1/keys/root"),
    ]


def test_creating_a_key_is_forbidden_while_there_are_none(local: Any) -> None:
    assert refused(httpx.post(f"{local.url}/v1/keys", json={"name": "ada"})) == (403, "forbidden")
