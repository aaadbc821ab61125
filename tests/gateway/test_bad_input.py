"""Bad input gets the error of its protocol and disturbs no other peer; unusual but valid input is accepted.

One table for all protocols: what is sent on one connection to a gateway in its own process, and what comes back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as sync_connect

from gateway.demo_clients import RelayClient, RestClient
from tests.gateway.raw_messages import NOBODY, SILENCE, RawAuthor, announce, ask, fits, packet, publish
from tests.server import Server

LONG = "x" * 300
RESERVED = {"type": 6, "topic": "elsewhere", "src": 1, "dst": 2, "error": "no", "json": 3}
VALUES: list[Any] = [None, 12345, "a string", [1, "two"], RESERVED]


class Case(NamedTuple):
    """What is sent, and what comes back: some of it (a dictionary's members, a frame's beginning), or silence."""

    sent: Any
    answer: Any


def not_found(stream: str, request: str = "p") -> list[Any]:
    return [2, 7, request, f"Stream {stream} not found.", "NOT_FOUND"]


RELAY = {
    "to nobody": Case(packet(4, "t", dst=NOBODY, a=1), SILENCE),
    "to who is not in the topic": Case(packet(4, "elsewhere", dst=0, a=1), SILENCE),
    "to no number": Case(packet(4, "t", dst="5"), {"error": "NoDestination", "dst": "5"}),
    "to oneself": Case(packet(4, "t", dst="OWN", a=1), {"type": 4, "a": 1}),
    **{
        f"{kind} with a topic of 31 units": Case(packet(kind, topic), {"error": "TopicNameIsTooLong", "type": kind})
        for kind, topic in ((2, "x" * 31), (3, "x" * 31), (4, "測" * 31), (6, "😀" * 15 + "x"), (1, "x" * 31))
    },
    "a topic of 30 units": Case(packet(2, "😀" * 15), {"topic": "😀" * 15, "peers": []}),
    "an empty topic": Case(packet(2, ""), {"topic": "", "peers": []}),
    "a topic with a line break": Case(packet(2, "a\nb"), {"topic": "a\nb", "peers": []}),
    "no topic": Case({"type": 2}, {"type": 2, "error": "InvalidParams"}),
    "a name of the gateway's own": Case(packet(6, "gateway/x"), {"error": "PermissionDenied"}),
    "an array": Case([1], {"error": "InvalidParams"}),
    "no JSON": Case("{", {"error": "InvalidJSON"}),
}

STREAMR = {
    "to nobody": Case(publish(f"t/@{NOBODY}", "1"), not_found(f"t/@{NOBODY}")),
    "to who is not in the stream": Case(publish("elsewhere/@0", "1"), not_found("elsewhere/@0")),
    "an inbox of nobody's": Case(publish("t/@somebody", "1"), not_found("t/@somebody")),
    "the inbox of another": Case([2, 9, "s", "t/@0", 0, None], [2, 7, "s", ..., "PERMISSION_DENIED"]),
    "to oneself": Case(publish("t/@OWN", "1"), [2, 0]),
    "an id with spaces": Case([2, 9, "s", " a b ", 0, None], [2, 2, "s", " a b ", 0]),
    "an id with slashes": Case([2, 9, "s", "/a//b/", 0, None], [2, 2, "s", "/a//b/", 0]),
    "an id of 255 characters": Case([2, 9, "s", "x" * 255, 0, None], [2, 2, "s", "x" * 255, 0]),
    "an id of 300 characters": Case([2, 9, "s", LONG, 0, None], not_found(LONG, "s")),
    "publish to 300 characters": Case(publish(LONG, "1"), not_found(LONG)),
    "an id with a line break": Case([2, 9, "s", "a\nb", 0, None], not_found("a\nb", "s")),
    "an empty id": Case([2, 9, "s", "", 0, None], [2, 7, "s", ..., "INVALID_REQUEST"]),
    "a partition that there is not": Case([2, 9, "s", "t", 7, None], [2, 7, "s", ..., "REQUEST_FAILED"]),
    "a name of the gateway's own": Case(publish("gateway/x", "1"), [2, 7, "p", ..., "PERMISSION_DENIED"]),
    "content that is no JSON": Case(publish("t", "{"), [2, 7, "p", ..., "REQUEST_FAILED"]),
    "content that is nothing": Case(publish("t", ""), [2, 7, "p", ..., "INVALID_REQUEST"]),
    "no JSON": Case("{", [2, 7]),
}

REST = {
    "to nobody": Case(("POST", f"/v1/channels/t/peers/{NOBODY}/messages", "1"), 404),
    "to who is not in the channel": Case(("POST", "/v1/channels/elsewhere/peers/OWN/messages", "1"), 404),
    "to oneself": Case(("POST", "/v1/channels/t/peers/OWN/messages", "1"), 202),
    "to no number": Case(("POST", "/v1/channels/t/peers/x/messages", "1"), 422),
    "a name of 256 characters": Case(("PUT", f"/v1/channels/{'x' * 256}", ""), 404),
    "a name with a line break": Case(("PUT", "/v1/channels/a%0Ab", ""), 404),
    "a name that is an inbox": Case(("POST", "/v1/channels/t%2F@5/messages", "1"), 404),
    "a name that is not UTF-8": Case(("POST", "/v1/channels/%FF/messages", "1"), 400),
    "a name of the gateway's own": Case(("POST", "/v1/channels/gateway%2Fx/messages", "1"), 403),
    "no JSON": Case(("POST", "/v1/channels/t/messages", "{"), 400),
    "two values": Case(("POST", "/v1/channels/t/messages", "1 2"), 400),
    "not a number": Case(("POST", "/v1/channels/t/messages", "NaN"), 400),
    "nothing": Case(("POST", "/v1/channels/t/messages", ""), 400),
    "too deep": Case(("POST", "/v1/channels/t/messages", "[" * 201 + "]" * 201), 400),
    "a stream of 300 characters": Case(("GET", f"/api/v1/streams/{LONG}", ""), 404),
    "a stream with spaces and slashes": Case(("GET", "/api/v1/streams/%20a%2Fb%20", ""), 200),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("data")) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.fixture
def nobody_notices(server: Server) -> Iterator[None]:
    """Whoever listens to the channel hears what is said after, and nothing else."""
    events = httpx.Client(base_url=f"http://{server.http}", timeout=10)
    with events, events.stream("GET", "/v1/channels/t/events") as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        yield
        httpx.post(f"http://{server.http}/v1/channels/t/messages", content='"the end"').raise_for_status()
        heard: list[object] = []
        while heard[-1:] != ["the end"]:
            event, data = next(line for line in lines if line.startswith("event: ")), next(lines)
            if event not in ("event: joined", "event: left"):
                heard.append(json.loads(data.removeprefix("data: "))["content"])
        assert heard == ["the end"]


def next_number(server: Server) -> int:
    """The number of the connection after this one: they are handed out in order."""

    async def look() -> int:
        async with connect(f"ws://{server.http}/relay") as socket:
            await socket.send('{"type":2,"topic":"who"}')
            await socket.recv()
            peers = httpx.get(f"http://{server.http}/v1/channels/who/peers").json()["peers"]
            return int(peers[0]["number"]) + 1

    return asyncio.run(look())


@pytest.mark.usefixtures("nobody_notices")
def test_a_direct_message_too_long_for_its_receiver_gets_that_reason(server: Server) -> None:
    async def scenario() -> httpx.Response:
        async with RelayClient(server.http) as ear, ear.rest as client:
            await ear.subscribe("narrow")
            (peer,) = (await client.get("/v1/channels/narrow/peers")).json()["peers"]
            path = f"/v1/channels/narrow/peers/{peer['number']}/messages"
            return await client.post(path, content=json.dumps("x" * 65_000))

    response = asyncio.run(scenario())
    assert response.status_code == 404
    assert "too long for topic_relay" in response.json()["detail"]


@pytest.mark.parametrize("name", RELAY)
def test_bad_input_on_the_topic_relay_gets_its_answer(server: Server, name: str) -> None:
    case, own = RELAY[name], next_number(server)
    silent = case.answer is SILENCE
    answer = asyncio.run(ask(f"ws://{server.http}/relay", [packet(2, "t")], case.sent, own, silent=silent))
    assert fits(answer, case.answer), answer


@pytest.mark.usefixtures("nobody_notices")
@pytest.mark.parametrize("name", STREAMR)
def test_bad_input_on_streamr_gets_its_answer(server: Server, name: str) -> None:
    case, own = STREAMR[name], next_number(server)
    url = f"ws://{server.http}/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
    before, silent = [[2, 9, "s", f"t/@{own}", 0, None]], case.answer is SILENCE
    answer = asyncio.run(ask(url, before, case.sent, own, silent=silent))
    assert fits(answer, case.answer), answer


@pytest.mark.parametrize("name", REST)
def test_bad_input_on_rest_gets_its_status(server: Server, name: str) -> None:
    (method, path, body), status = REST[name]

    async def scenario() -> httpx.Response:
        async with RestClient(server.http) as own:
            await own.subscribe("t")
            number = (await own.client.get("/v1/channels/t/peers")).json()["peers"][0]["number"]
            return await own.client.request(method, path.replace("OWN", str(number)), content=body)

    response = asyncio.run(scenario())
    assert response.status_code == status, response.text
    if status >= 400 and path.startswith("/v1/"):
        assert response.headers["content-type"] == "application/problem+json"
        detail = response.json()["detail"]
        assert len(detail) > 10
        assert ("255 characters" in detail) == (name.startswith("a name") and status == 404), "it says what a name is"


COMMUNITIES = [
    ("a name that is taken", b"t", 0, "t~"),
    ("an empty name", b"", 0, "community~"),
    ("a name of 255 bytes", b"x" * 255, 0, "x" * 255),
    ("a name of 256 bytes", b"y" * 256, 0, "community~"),
    ("a name of 257 bytes", b"z" * 257, 1, None),
    ("a name with a newline", b"a\nb", 1, None),
    ("a name that is not UTF-8", b"\xff", 1, None),
    ("a name that is an inbox", b"t/@5", 0, "community~"),
    ("a name of the gateway's own", b"gateway/x", 0, "community~"),
    ("a name with a tabulator", b"a\tb", 0, "community~"),
]


@pytest.mark.parametrize(
    ("name", "status", "called"), [row[1:] for row in COMMUNITIES], ids=[r[0] for r in COMMUNITIES]
)
def test_community_names_get_their_status_and_channel(
    server: Server, name: bytes, status: int, called: str | None
) -> None:
    httpx.put(f"http://{server.http}/v1/channels/t").raise_for_status()
    author = RawAuthor()
    node = author.community(name)
    assert asyncio.run(announce(server, author.identity, node)) == status
    if called is not None and called.endswith("~"):
        called += digest_of(node)[:6]
    assert names_of(server, node) == ([] if called is None else [called])


def test_communities_with_underscores_in_their_digest_get_a_channel(server: Server) -> None:
    httpx.put(f"http://{server.http}/v1/channels/t").raise_for_status()
    author = RawAuthor()
    nodes = dict[bool, str]()
    while len(nodes) < 2:  # one in 64 begins with one, one in 100 has two next to each other
        digest = digest_of(node := author.community(b"t"))
        if digest.startswith("_") or "__" in digest:
            nodes[digest.startswith("_")] = node
    assert asyncio.run(announce(server, author.identity, *nodes.values())) == 0
    for node in nodes.values():
        assert names_of(server, node) == ["t~" + digest_of(node)[:6]]


def digest_of(node: str) -> str:
    """The digest in the id of *node*; underscores may stand in it as well as before it."""
    return node.split(" ")[0].removeprefix("SHA512_B32__")


def names_of(server: Server, node: str) -> list[str]:
    """The channels whose community *node* is."""
    page = httpx.get(f"http://{server.http}/v1/channels?limit=256").json()["channels"]
    return [channel["name"] for channel in page if channel.get("community") == node.split(" ")[0]]


@pytest.mark.usefixtures("nobody_notices")
@pytest.mark.parametrize(
    ("to", "status"), [(str(NOBODY), 4), ("no number", 4), ("", 4), ("SHA512_B32__" + "A" * 43, 4), ("OWN", 0)]
)
def test_direct_messages_of_arbor_get_their_status(server: Server, to: str, status: int) -> None:
    root = httpx.put(f"http://{server.http}/v1/channels/t").json()
    while root.get("community") is None:
        root = httpx.get(f"http://{server.http}/v1/channels/t").json()
    author = RawAuthor()
    own = str(next_number(server))
    whisper = author.reply(root["community"], "psst", to_1=own if to == "OWN" else to)
    assert asyncio.run(announce(server, author.identity, whisper, community=root["community"])) == status


# Content


@pytest.mark.parametrize("value", VALUES, ids=["null", "number", "string", "array", "reserved keys"])
def test_any_value_is_content_on_every_protocol(server: Server, value: Any) -> None:
    """What each protocol's clients write for it comes out as that value, to whoever listens."""
    text, channel = json.dumps(value), f"content {VALUES.index(value)}"

    async def scenario() -> list[Any]:
        async with RestClient(server.http) as ear:
            await ear.subscribe(channel)
            await ask(f"ws://{server.http}/relay", [], packet(6, channel, json=value), None, silent=True)
            await ask(f"ws://{server.http}/api/v1/ws", [], publish(channel, text), None, silent=True)
            httpx.post(f"http://{server.http}/v1/channels/{channel}/messages", content=text).raise_for_status()
            while (
                community := httpx.get(f"http://{server.http}/v1/channels/{channel}").json().get("community")
            ) is None:
                await asyncio.sleep(0.02)
            author = RawAuthor()
            assert await announce(server, author.identity, author.reply(community, text, json_1="true")) == 0
            return [(await ear.next()).content for _ in range(4)]

    assert asyncio.run(scenario()) == [value] * 4


# Channels


def test_one_connection_listens_only_to_so_many_channels(tmp_path: Path) -> None:
    """Each is told in the words of its protocol, and once it listens to one less it may again."""
    community, another = (f"SHA512_B32__{letter * 42}A" for letter in "AB")

    async def arbor(server: Server) -> bytes:
        reader, writer = await asyncio.open_connection(*server.sprout.split(":"))
        writer.write(f"subscribe 1 {community}\nsubscribe 2 {another}\nsubscribe 3 {community}\n".encode())
        said = b"".join([await reader.readline() for _ in range(3)])
        writer.close()
        return said

    with Server(tmp_path, env={"TRELLIS_LIMITS__SUBSCRIPTIONS": "1"}) as server:
        relay, streamr = f"ws://{server.http}/relay", f"ws://{server.http}/api/v1/ws"
        assert fits(asyncio.run(ask(relay, [packet(2, "a")], packet(2, "b"), None)), {"error": "TooManySubscriptions"})
        answer = asyncio.run(ask(streamr, [[2, 9, "s", "a", 0, None]], [2, 9, "t", "b", 0, None], None))
        assert fits(answer, [2, 7, "t", ..., "REQUEST_FAILED"])
        assert "limits.subscriptions" in answer[3]
        instead = [[2, 9, "s", "a", 0, None], [2, 10, "u", "a", 0, None]]
        assert fits(asyncio.run(ask(streamr, instead, [2, 9, "t", "b", 0, None], None)), [2, 2, "t", "b", 0])
        assert asyncio.run(arbor(server)) == b"status 1 0\nstatus 2 1\nstatus 3 0\n"
        assert "Traceback" not in server.log


def test_a_refused_websocket_gets_a_problem_document(server: Server) -> None:
    for path in ("/relay", "/api/v1/ws"):
        with pytest.raises(InvalidStatus) as refused, sync_connect(f"ws://{server.http}{path}?key=none"):
            pass
        response = refused.value.response
        assert (response.status_code, response.headers["content-type"]) == (401, "application/problem+json")
        assert json.loads(response.body)["code"] == "unknown-key"


def test_only_so_many_channels_are_made(tmp_path: Path) -> None:
    with Server(tmp_path, env={"TRELLIS_CHANNELS__LIMIT": "1"}) as server:
        here = f"http://{server.http}/v1/channels/"
        httpx.put(f"{here}t").raise_for_status()
        relay, streamr = f"ws://{server.http}/relay", f"ws://{server.http}/api/v1/ws"
        assert fits(asyncio.run(ask(relay, [], packet(2, "new"), None)), {"error": "TooManyTopics"})
        answer = asyncio.run(ask(streamr, [], [2, 9, "s", "new", 0, None], None))
        assert fits(answer, [2, 7, "s", ..., "REQUEST_FAILED"])
        for method, path in (("PUT", "new"), ("POST", "new/messages"), ("GET", "new/events")):
            response = httpx.request(method, here + path, content="1")
            assert (response.status_code, "1 channels" in response.json()["detail"]) == (507, True)
        author = RawAuthor()
        assert asyncio.run(announce(server, author.identity, author.community(b"new"))) == 1
        assert [each["name"] for each in httpx.get(here[:-1]).json()["channels"]] == ["t"]
        assert httpx.post(f"{here}t/messages", content="1").status_code == 201
    assert "Traceback" not in server.log
