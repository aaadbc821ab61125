"""REST accepts messages once they are on disk, returns them unchanged, and gives reasons for refusals."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core import jsontext
from gateway.http import explanations, keys, operations, rest, sync, traces
from gateway.webhooks import routes
from tests.gateway.http.rest_requests import LOBBY, NDJSON, PATIENCE, BulkConnection, lines, problem, say

ROUTES = (
    *(*rest.ROUTES, *keys.ROUTES, *traces.ROUTES, *sync.ROUTES),
    *(*operations.ROUTES, *explanations.ROUTES, *routes.ROUTES),
)


@pytest.fixture
def operator(make_local: Callable[..., Any]) -> Iterator[httpx.Client]:
    """Somebody who may administer: without keys and grants nobody may."""
    server = make_local(auth={"grants": {"anonymous": ["*:*", "admin:*"]}})
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


# One message


def test_a_published_message_is_found_at_the_returned_position(http: httpx.Client) -> None:
    taken = say(http, {"text": "hello"})
    assert set(taken) == {"id", "channel", "sequence", "timestamp", "undelivered"}
    assert taken["channel"] == "lobby"
    (found,) = http.get(LOBBY).json()["messages"]
    assert found == http.get(f"{LOBBY}/{taken['id']}").json()
    assert found == taken | {
        "sender": {"peer": found["sender"]["peer"], "protocol": "rest", "identity": "(no key)", "name": None},
        "content": {"text": "hello"},
        "inReplyTo": None,
        "native": {},
    }


def test_an_acceptance_waits_for_the_disk(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    say(http)
    disk, reached, sync = threading.Event(), threading.Event(), os.fdatasync

    def slow(file: int) -> None:
        reached.set()
        assert disk.wait(PATIENCE)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    with ThreadPoolExecutor() as pool:
        one = pool.submit(say, http, "one")
        many = pool.submit(http.post, LOBBY, content=b"2\n3\n", headers=NDJSON)
        assert reached.wait(PATIENCE)
        for _ in range(20):
            assert len(http.get(LOBBY).json()["messages"]) == 1, "what is not on disk shows no sequence"
        assert not one.done()
        assert not many.done()
        disk.set()
        assert one.result()["sequence"]
        assert len(lines(many.result())) == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["1e400", "-0.0", "0.10", "1E+2"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, spaces=st.sampled_from(["", " ", "\n", "\r\n  ", "\t"]))
def test_property_content_is_returned_verbatim(http: httpx.Client, value: Any, spaces: str) -> None:
    text = json.dumps(value, separators=("," + spaces, ":" + spaces)).replace('"1e400"', "1e400")
    taken = http.post(LOBBY, content=spaces + text + spaces).json()
    kept = text.replace("\n", " ").replace("\r", " ")
    for path in (f"{LOBBY}/{taken['id']}", f"{LOBBY}?order=desc&limit=1"):
        assert f'"content":{kept},"inReplyTo"'.encode() in http.get(path).content


def test_a_message_answers_another_by_its_id(http: httpx.Client) -> None:
    first = say(http)
    for reference, parent in [(first["id"], first["id"]), ("nobody's", None), ("x" * 10_000, None), (7, None)]:
        taken = say(http, {"inReplyTo": reference})
        found = http.get(f"{LOBBY}/{taken['id']}").json()
        assert found["inReplyTo"] == parent
        assert found["content"] == {"inReplyTo": reference}
    raw = http.post(LOBBY, content=rb'{"inReplyTo": "\ud800"}')
    assert raw.status_code == 201


@pytest.mark.parametrize("name", ["a/b", "100%", "ümläut ☃", "a?b#c", "..", "x" * 255])
def test_any_name_can_be_a_channel(http: httpx.Client, name: str) -> None:
    path = f"/v1/channels/{quote(name, safe='')}"
    if name == "..":
        path = "/v1/channels/%2E%2E"
    taken = say(http, path=f"{path}/messages")
    assert taken["channel"] == name
    assert http.get(path).json()["name"] == name
    assert len(http.get(f"{path}/messages").json()["messages"]) == 1
    assert name in [channel["name"] for channel in http.get("/v1/channels").json()["channels"]]


# History


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_history_comes_in_pages(http: httpx.Client, order: str) -> None:
    body = b"".join(b"%d\n" % n for n in range(100))
    said = [result["sequence"] for result in lines(http.post(LOBBY, content=body, headers=NDJSON))]
    say(http, path="/v1/channels/other/messages")
    url, seen = f"{LOBBY}?limit=33&order={order}&after={said[4]}&before={said[95]}", []
    pages = 0
    while url:
        page = http.get(url).json()
        seen += [message["sequence"] for message in page["messages"]]
        url, pages = page["next"], pages + 1
    wanted = said[5:95]
    assert seen == (wanted if order == "asc" else wanted[::-1])
    assert pages == 3
    assert http.get(f"{LOBBY}?limit=100").json()["next"] is None


def test_history_by_sender_and_of_big_messages(http: httpx.Client) -> None:
    big = "x" * 1_000_000
    for n in range(6):
        say(http, f"{n}{big}")
    page = http.get(LOBBY).json()
    assert 0 < len(page["messages"]) < 6, "an answer is bounded, whatever the limit"
    rest = http.get(page["next"]).json()
    assert [m["content"][0] for m in page["messages"] + rest["messages"]] == list("012345")
    number = page["messages"][0]["sender"]["peer"]
    assert len(http.get(f"{LOBBY}?sender={number}&limit=2").json()["messages"]) == 2
    assert http.get(f"{LOBBY}?sender={number + 1}").json() == {"messages": [], "next": None}


# Channels and peers


def test_channels_are_made_shown_and_closed(operator: httpx.Client) -> None:
    http = operator
    problem(http.get("/v1/channels/room"), 404)
    made = http.put("/v1/channels/room")
    assert (made.status_code, http.put("/v1/channels/room").status_code) == (201, 200)
    assert made.json() == {"name": "room", "addresses": {}, "members": 0, "sequence": 0}
    taken = say(http, path="/v1/channels/room/messages")
    assert http.get("/v1/channels/room").json()["sequence"] == taken["sequence"]
    assert http.delete("/v1/channels/room").status_code == 204
    problem(http.get("/v1/channels/room"), 404)
    assert http.get("/v1/channels").json()["channels"] == []
    assert len(http.get("/v1/channels/room/messages").json()["messages"]) == 1, "its history stays"


def test_channels_come_in_pages(http: httpx.Client) -> None:
    names = [f"room & {n}" for n in range(7)]
    for name in names:
        http.put(f"/v1/channels/{quote(name)}")
    url, seen = "/v1/channels?limit=3", []
    while url:
        page = http.get(url).json()
        seen += [channel["name"] for channel in page["channels"]]
        url = page["next"]
    assert seen == names


def test_only_configured_channels_exist_if_creation_is_off(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]
) -> None:
    http = client_of(make_local(channels={"create": "configured", "names": ["lobby"]}))
    say(http)
    assert http.get(LOBBY).status_code == 200
    for method, path in [("POST", "/messages"), ("GET", "/messages"), ("GET", "/events"), ("PUT", ""), ("GET", "")]:
        problem(http.request(method, f"/v1/channels/other{path}", content="1"), 404)


def test_peers_are_found_by_number(http: httpx.Client) -> None:
    say(http)
    number = http.get(LOBBY).json()["messages"][0]["sender"]["peer"]
    assert http.get(f"/v1/peers/{number}").json() == {
        "number": number,
        "protocol": "rest",
        "identity": "(no key)",
        "name": None,
        "connections": 0,
        "connectionNumbers": [],
        "protocols": ["rest"],
        "boundTo": None,
        "key": None,
        "addresses": {},
        "channels": [],
        "saidIn": ["lobby"],
    }
    problem(http.get("/v1/peers/99999"), 404)
    assert http.get("/v1/channels/lobby/peers").json() == {"peers": []}
    assert "/peers" in problem(http.post("/v1/channels/lobby/peers/99999/messages", content="1"), 404)
    with http.stream("GET", "/v1/channels/lobby/events") as response:
        received = response.iter_lines()
        welcome = next(line for line in received if line.startswith("data: "))
        own = json.loads(welcome.removeprefix("data: "))["number"]
        shown = http.get(f"/v1/peers/{own}").json()
        assert (shown["number"], shown["connections"]) == (own, 1)
        sent = http.post(f"/v1/channels/lobby/peers/{own}/messages", content='"psst"')
        assert (sent.status_code, sent.json()["delivered"]) == (202, 1)
    assert len(http.get(LOBBY).json()["messages"]) == 1, "what is direct is not history"


# The gateway


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/channels/lobby"), ("GET", "/v1/log")])
def test_administration_is_forbidden_while_there_are_no_keys(http: httpx.Client, method: str, path: str) -> None:
    say(http)
    detail = problem(http.request(method, path), 403)
    assert "admin" in detail
    assert http.get("/v1/channels/lobby").status_code == 200


def test_an_unknown_channel_cannot_be_closed(operator: httpx.Client) -> None:
    problem(operator.delete("/v1/channels/nobody"), 404)


def test_the_log_is_shown_as_it_is_on_disk(operator: httpx.Client, tmp_path: Path) -> None:
    http = operator
    said = lines(http.post(LOBBY, content=b"1\n" * 600, headers=NDJSON))
    (segment,) = (tmp_path / "data/log").glob(".open-*.jsonl")
    shown = http.get("/v1/log").content
    assert shown == segment.read_bytes()[: len(shown)]
    assert len(shown.splitlines()) == said[-1]["sequence"]
    some = http.get(f"/v1/log?after={said[99]['sequence']}&limit=300").content.splitlines()
    assert [json.loads(line)["seq"] for line in some] == [result["sequence"] for result in said[100:400]]
    assert http.get(f"/v1/log?after={said[-1]['sequence']}").content == b""


def test_requests_are_counted(http: httpx.Client) -> None:
    taken = say(http)
    http.post(LOBBY, content="{")
    stats = http.get("/v1/stats").json()
    assert stats["protocols"]["rest"]["messages"] == 1
    assert stats["protocols"]["rest"]["refused"] == 1
    assert stats["sequence"] == taken["sequence"]
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'trellis_messages_total{protocol="rest"} 1.0' in metrics.text
    assert 'trellis_refused_total{protocol="rest",reason="400"} 1.0' in metrics.text
    assert int(float(metrics.text.partition("\ntrellis_tasks ")[2].partition("\n")[0])) > 0
    assert [row["name"] for row in http.get("/v1/protocols").json()["protocols"]] == ["rest"]
    assert http.get("/").json()["api"] == "/docs"


def test_every_route_is_described(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, row in described.items() for method in row} == {
        (method, path) for method, path, *_ in ROUTES
    }
    for method, path, _, status, _, more, *_ in ROUTES:
        operation = described[path][method.lower()]
        assert len(operation["summary"]) > 10
        assert str(status) in operation["responses"]
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert {part[1:-1] for part in path.split("/") if part.startswith("{")} <= names
        assert all(parameter.get("description") for parameter in operation.get("parameters", []))
        if path.startswith("/v1/"):
            assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert ("requestBody" in operation) == ("requestBody" in more)
    assert http.get("/docs").status_code == 200


# The worst


@pytest.mark.parametrize("seed", range(3))
def test_accepted_messages_survive_a_kill(
    make_process: Callable[..., Any], client_of: Callable[..., httpx.Client], seed: int
) -> None:
    process = make_process()
    accepted: list[dict[str, Any]] = []
    enough, wanted = threading.Event(), random.Random(seed).randrange(500, 3_000)

    def load(who: int) -> None:
        with suppress(OSError, ValueError), BulkConnection(process) as wire:  # until the gateway is gone
            sent = 0
            while True:
                wire.send(b"".join(b'{"who":%d,"n":%d}\n' % (who, sent + n) for n in range(50)))
                sent += 50
                accepted.extend(wire.receive())
                if len(accepted) > wanted:
                    enough.set()

    threads = [threading.Thread(target=load, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    assert enough.wait(PATIENCE)
    process.kill()
    for thread in threads:
        thread.join(PATIENCE)
    http = client_of(make_process())
    found: dict[int, Any] = {}
    url = f"{LOBBY}?limit=256"
    while url:
        page = jsontext.loads(http.get(url).content)
        found |= {message["sequence"]: message for message in page["messages"]}
        url = page["next"]
    assert len(accepted) > wanted
    for result in accepted:
        assert found[result["sequence"]]["id"] == result["id"]
    for who in range(3):
        order = [message["content"]["n"] for message in found.values() if message["content"]["who"] == who]
        assert order == list(range(len(order))), "each sender's messages in order, none missing in between"
    assert http.get(f"{LOBBY}/{accepted[-1]['id']}").json()["sequence"] == accepted[-1]["sequence"]
    assert say(http)["sequence"] > max(found)
