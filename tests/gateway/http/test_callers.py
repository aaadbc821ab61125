"""REST callers are checked before anything is read, counted or kept for them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from gateway.access.authorization import NO_KEY, Access, ApiKey, KeyFile, digest, key_identity
from gateway.core.errors import Throttled, UnknownChannel
from gateway.http.callers import Caller
from gateway.http.problems import Problem

PATIENCE = 60.0
HALF = "\ud800"  # of a character


def caller(gateway: Any, address: str = "127.0.0.1", key: str | None = None) -> Caller:
    headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    return Caller(gateway, Request({"type": "http", "headers": headers, "client": (address, 1)}))


def rates(**limits: float) -> dict[str, Any]:
    return {"rates": "on"} | {name: {"rate": 0.001, "burst": burst} for name, burst in limits.items()}


def test_strangers_are_paced_by_their_addresses(make_still: Callable[..., Any]) -> None:
    gateway = make_still(limits=rates(address=2, peer=1)).gateway
    for address in ("10.0.0.1", "10.0.0.2", "2001:db8::1"):
        for _ in range(2):
            caller(gateway, address).check("publish", "lobby")
        with pytest.raises(Throttled):
            caller(gateway, address)


def test_a_costly_request_counts_as_several(make_still: Callable[..., Any]) -> None:
    gateway = make_still(limits=rates(address=10)).gateway
    caller(gateway).charge(9.5)
    with pytest.raises(Throttled):
        caller(gateway)
    caller(gateway, "10.0.0.2")


def test_an_invalid_channel_name_gets_no_bucket(make_still: Callable[..., Any]) -> None:
    gateway = make_still(limits=rates(address=1_000)).gateway
    taken: list[str] = []

    def throttle(_principal: Any, _peer: Any, channel: str) -> float:
        taken.append(channel)
        return 0.0

    gateway.bus.throttle = throttle
    for name in ("x" * 60_000, "", "a%00b", "a/@7"):
        with pytest.raises(UnknownChannel):
            caller(gateway).resolve_channel("subscribe", name)
    assert not taken
    caller(gateway).resolve_channel("subscribe", "lobby")
    assert taken == ["lobby"]


def test_keys_with_reserved_names_have_distinct_identities(still: Any) -> None:
    names = ("rest", NO_KEY, f"key:{NO_KEY}", "anonymous")
    gateway, keys = still.gateway, {name: f"the secret of {name}" for name in names}
    gateway.access.set_keys(ApiKey(name, digest(secret)) for name, secret in keys.items())
    stranger = caller(gateway).who
    peers = {name: caller(gateway, key=key).who for name, key in keys.items()}
    assert len({stranger.number, *(peer.number for peer in peers.values())}) == len(names) + 1
    assert (peers["rest"].identity, peers["rest"].name) == ("rest", "rest"), "keys are who they were"
    assert (stranger.identity, stranger.name) == (NO_KEY, None)
    assert len({key_identity(name) for name in (None, *names)}) == len(names) + 1


def test_a_lone_surrogate_is_an_unknown_key(make_local: Callable[..., Any]) -> None:
    access = Access([ApiKey("k", digest("secret"))])
    assert access.authenticate("rest", HALF) is None
    assert access.key_name(HALF) is None
    local = make_local()
    assert httpx.get(f"{local.url}/v1/channels/lobby/events?key=%ED%A0%80").status_code == 401
    with pytest.raises(Problem, match="no such key"):
        Caller(local.gateway, Request({"type": "http", "headers": [], "client": None}), HALF)


def status_without_body(local: Any, path: str, *headers: str, type: str = "application/json") -> int:
    """What a request is answered of whose body no byte is ever sent."""
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Length: 1000000", f"Content-Type: {type}", *headers]
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as sock:
        sock.sendall("\r\n".join([*head, "", ""]).encode())
        return int(sock.recv(1 << 16).split()[1])


@pytest.mark.parametrize("type", ["application/json", "application/x-ndjson"])
def test_a_caller_without_the_right_is_refused_before_its_body_is_read(
    type: str, tmp_path: Path, make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add("k", ("publish:lobby", "direct:lobby"))
    local = make_local(limits=rates(address=1_000, channel=2))
    bearer, lobby = f"Authorization: Bearer {key}", "/v1/channels/lobby/messages"
    assert status_without_body(local, lobby, type=type) == 401
    assert status_without_body(local, lobby, "Authorization: Bearer none", type=type) == 401
    assert status_without_body(local, "/v1/channels/else/messages", bearer, type=type) == 403
    assert status_without_body(local, "/v1/channels/a%2F%40b/messages", bearer, type=type) == 404
    assert status_without_body(local, "/v1/channels/else/peers/1/messages", bearer, type=type) == 403
    log = local.gateway.log
    local.settle()  # a write that succeeds takes back what follows
    monkeypatch.setattr(log, "failing", "No space left on device")
    monkeypatch.setattr(log, "congested", True)
    assert status_without_body(local, lobby, bearer, type=type) == 503


def test_a_caller_over_its_rate_is_refused_before_its_body_is_read(make_local: Callable[..., Any]) -> None:
    local = make_local(limits=rates(address=1_000, channel=2))
    for _ in range(2):
        assert httpx.post(f"{local.url}/v1/channels/lobby/messages", content="1").status_code == 201
    assert status_without_body(local, "/v1/channels/lobby/messages") == 429
    assert status_without_body(local, "/v1/channels/lobby/peers/1/messages") == 429


READ = [
    "/v1/channels",
    "/v1/protocols",
    "/v1/stats",
    "/v1/log",
    "/v1/peers/1",
    "/v1/channels/lobby/peers",
    "/v1/none",
    "/v1/report",
]
SHOWN = ["/", "/docs", "/openapi.json", "/asyncapi.json", "/metrics", "/none"]


@pytest.mark.parametrize("path", READ + SHOWN)
def test_every_request_is_paced(path: str, make_local: Callable[..., Any]) -> None:
    local = make_local(limits=rates(address=5))
    with httpx.Client(base_url=local.url, timeout=PATIENCE) as http:
        statuses = [http.get(path).status_code for _ in range(6)]
        assert statuses[0] != 429
        assert statuses[-1] == 429
        assert http.get("/readyz").status_code == 200, "whoever watches over the process is not to be refused"


@pytest.mark.parametrize("path", READ + SHOWN)
def test_dns_rebinding_is_refused_on_every_path(path: str, local: Any) -> None:
    answer = httpx.get(local.url + path, headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert "auth.origins" in answer.json()["detail"]
    assert httpx.get(local.url + path, headers={"Origin": "http://evil.example"}).status_code == 403
    assert httpx.get(local.url + "/healthz", headers={"Host": "pod-7"}).status_code == 200


def test_metrics_need_a_key_if_keys_exist(tmp_path: Path, make_local: Callable[..., Any]) -> None:
    file = KeyFile(tmp_path / "data" / "keys" / "api-keys.json")
    reader, other = file.add("prometheus", ("history:*",)), file.add("other", ("publish:*",))
    url = f"{make_local().url}/metrics"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": f"Bearer {other}"}).status_code == 403
    assert "trellis_messages" in httpx.get(url, headers={"Authorization": f"Bearer {reader}"}).text
