"""REST describes each sender by all its names, and the capabilities of each protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import pytest
from coincurve import PrivateKey
from websockets.sync.client import connect

from adapters import ADAPTERS
from adapters.sprout.adapter import SproutAdapter
from adapters.sprout.mint.signing import SigningPool
from adapters.streamr.crypto.signing import address_of, sign_message
from adapters.streamr.wire.message import MessageID, StreamMessage
from gateway.access.authorization import KeyFile
from gateway.adapter import LIMIT_NAMES, OPERATIONS
from gateway.demo_clients import RelayClient, RestClient, SproutClient, StreamrClient
from gateway.http import rest
from gateway.http.operations import REST_DESCRIPTION
from gateway.settings import config
from tests.conformance.forge import SequoiaForge
from tests.gateway.http.rest_reader import Rest, run
from tests.server import Server

ROOT = Path(__file__).parents[3]
HEADS = ["topic_relay", "sprout", "streamr", "rest"]  # the columns of the tables in docs/protocols.md


# Senders


def known_senders(server: Server, connected: bool) -> dict[str, Any]:
    """What REST knows of the sender of each of four messages, by its protocol."""
    rest = Rest(server)
    messages = rest.eventually("/v1/channels/lobby/messages", lambda page: len(page["messages"]) == 4)["messages"]
    senders = {message["sender"]["protocol"]: message["sender"] for message in messages}
    known = {}
    for protocol, sender in senders.items():
        path = f"/v1/peers/{sender['peer']}"
        found = rest.eventually(path, lambda answer: answer["addresses"]["sprout"] is not None)  # made by and by
        assert (found["number"], found["protocol"]) == (sender["peer"], protocol)
        assert (found["identity"], found["saidIn"]) == (sender["identity"], ["lobby"])
        assert found["channels"] == (["lobby"] if connected and protocol in ("topic_relay", "sprout") else [])
        known[protocol] = found
    return known


def test_senders_are_fully_described_before_and_after_a_restart(tmp_path: Path) -> None:
    key, alice = PrivateKey(b"\x07" * 32), SequoiaForge("alice")
    address = address_of(key.public_key)
    before: dict[str, Any] = {}

    async def scenario() -> None:
        relay, sprout = RelayClient(server.http), SproutClient(server.http, server.sprout, alice)
        streamr, program = StreamrClient(server.http), RestClient(server.http)
        async with relay, sprout, streamr, program:
            for client in (relay, sprout, program):
                await client.subscribe("lobby")
            await relay.publish("lobby", {"n": 1})
            await sprout.publish("lobby", {"n": 2})
            message = StreamMessage(MessageID("lobby", 0, time.time_ns() // 10**6, 0, address, "c"), '{"n":3}')
            row = json.loads(sign_message(message, key).encode(32))
            await streamr._send([2, 8, "publish", row, None])  # the client itself signs nothing
            await program.publish("lobby", {"n": 4})
            for _ in range(3):
                await sprout.next()
            before.update(await asyncio.to_thread(known_senders, server, True))

    with Server(tmp_path) as server:
        run(scenario)
    with Server(tmp_path) as server:
        after = known_senders(server, False)
        bridged = Rest(server).get("/api/v1/streams/lobby/publishers")["addresses"]
    for protocol, found in before.items():
        assert after[protocol]["addresses"] == found["addresses"], protocol
        assert after[protocol]["connections"] == 0
    assert before["topic_relay"]["addresses"]["topic_relay"] == before["topic_relay"]["number"]
    assert before["sprout"]["addresses"]["sprout"] == before["sprout"]["identity"] == alice.identity().id
    assert before["streamr"]["addresses"]["streamr"] == before["streamr"]["identity"] == address
    assert before["sprout"]["connections"] == before["topic_relay"]["connections"] == 1
    assert before["sprout"]["connectionNumbers"] != [before["sprout"]["number"]], "that of the connection is another"
    assert {found["addresses"]["streamr"] for found in before.values()} == set(bridged)
    assert len({found["addresses"]["sprout"] for found in before.values()}) == 4


def test_peers_are_described_with_identity_key_and_connections(tmp_path: Path) -> None:
    secret = KeyFile(tmp_path / "keys" / "api-keys.json").add("ops")
    narrow = KeyFile(tmp_path / "keys" / "api-keys.json").add("narrow", ["subscribe:lobby"])

    async def scenario() -> None:
        async with RestClient(server.http, secret) as program:
            await program.subscribe("lobby")
            await asyncio.to_thread(look)

    def look() -> None:
        rest = Rest(server, secret)
        (shown,) = rest.get("/v1/channels/lobby/peers")["peers"]
        found = rest.get(f"/v1/peers/{shown['number']}")
        assert (found["identity"], found["name"], found["key"], found["boundTo"]) == ("ops", "ops", "ops", None)
        (number,) = found["connectionNumbers"]
        bound = rest.get(f"/v1/peers/{number}")
        assert (bound["boundTo"], bound["identity"], bound["key"]) == (shown["number"], None, "ops")
        assert bound["addresses"] == found["addresses"]
        assert bound["channels"] == found["channels"] == ["lobby"]
        path = f"/v1/peers/{shown['number']}"
        Rest(server).get(path, 401)
        Rest(server, narrow).get(path, 403)
        rest.get("/v1/peers/99999", 404)

    with Server(tmp_path) as server:
        run(scenario)


async def events_about_ops(server: Server, key: str, relay: RelayClient) -> list[tuple[str, str]]:
    """What *key* is told of a peer called ops that joins and says something: the kind of event, and the protocol."""
    told, url = list[tuple[str, str]](), f"http://{server.http}/v1/channels/lobby/events"
    async with (
        httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=10) as http,
        http.stream("GET", url) as events,
    ):
        lines = events.aiter_lines()
        await relay.subscribe("lobby")
        await relay.publish("lobby", {"n": 1})
        async for line in lines:
            if line.startswith("data: ") and (data := json.loads(line[6:])).get("name") == "ops":
                told.append(("joined", data["protocol"]))
            elif '"content"' in line:
                told.append(("said", data["sender"]["protocol"]))
                break
    return told


def test_a_key_holder_is_shown_with_its_protocols(tmp_path: Path) -> None:
    ops, watcher = (KeyFile(tmp_path / "keys" / "api-keys.json").add(name) for name in ("ops", "watcher"))

    async def scenario() -> None:
        async with RestClient(server.http, watcher) as ear, RelayClient(server.http, ops) as relay:
            asker = Rest(server, watcher)

            async def shown() -> dict[str, str]:
                peers = (await asyncio.to_thread(asker.get, "/v1/channels/lobby/peers"))["peers"]
                return {peer["name"]: peer["protocol"] for peer in peers}

            told = await events_about_ops(server, watcher, relay)
            assert told == [("joined", "topic_relay"), ("said", "topic_relay")]
            assert (await shown())["ops"] == "topic_relay"
            (message,) = (await asyncio.to_thread(asker.get, "/v1/channels/lobby/messages"))["messages"]
            number = message["sender"]["peer"]
            assert (message["sender"]["protocol"], message["sender"]["identity"]) == ("topic_relay", "ops")
            found = await asyncio.to_thread(asker.get, f"/v1/peers/{number}")
            assert (found["protocol"], found["protocols"], found["key"]) == ("topic_relay", ["topic_relay"], "ops")
            async with RestClient(server.http, ops) as program:
                await program.subscribe("lobby")
                assert (await shown())["ops"] == "rest"
                found = await asyncio.to_thread(asker.get, f"/v1/peers/{number}")
                assert found["protocols"] == ["topic_relay", "rest"]
            while (await shown())["ops"] != "topic_relay":
                await asyncio.sleep(0.01)
            await ear.publish("lobby", {"n": 2})
        found = await asyncio.to_thread(
            asker.eventually, f"/v1/peers/{number}", lambda answer: answer["connections"] == 0
        )
        assert (found["protocol"], found["protocols"]) == ("topic_relay", ["topic_relay"])

    with Server(tmp_path) as server:
        run(scenario)


# What a channel is called


def test_a_channel_that_was_made_has_its_address_in_every_protocol(tmp_path: Path) -> None:
    with Server(tmp_path) as server, httpx.Client(base_url=f"http://{server.http}", timeout=10) as http:
        for number in range(50):
            made = http.put(f"/v1/channels/room%2F{number}")
            assert made.status_code == 201
            assert sorted(made.json()["addresses"]) == ["sprout", "streamr", "topic_relay"]
            assert http.get(f"/v1/channels/room%2F{number}").json() == made.json()


def test_waiting_for_a_community_times_out(make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "PREPARE_SECONDS", 0.1)
    make, orders = SigningPool.submit, list[tuple[Any, ...]]()
    monkeypatch.setattr(SigningPool, "submit", lambda *order: orders.append(order))
    local = make_local(adapters=(SproutAdapter,), sprout={"port": 0})
    answer = httpx.put(f"{local.url}/v1/channels/lobby")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["detail"].endswith("no address in Arbor yet; PUT it again to wait for that")
    monkeypatch.setattr(rest, "PREPARE_SECONDS", 10)
    Timer(0.1, local.call, (lambda: [make(*order) for order in orders],)).start()
    answer = httpx.put(f"{local.url}/v1/channels/lobby")
    assert (answer.status_code, len(orders)) == (200, 1)
    assert answer.json()["community"].startswith("SHA512_B32__")


def test_counts_without_a_protocol_are_in_no_row(local: Any) -> None:
    local.gateway.metrics.count("given_up")
    assert "given_up" not in str(httpx.get(f"{local.url}/v1/stats").json()["protocols"])


# What each protocol can carry


def test_code_documents_and_rest_agree_on_what_each_protocol_carries(tmp_path: Path) -> None:
    rows: dict[str, Any] = {
        adapter.name: {"carries": adapter.carries, "limits": adapter.limits} for adapter in ADAPTERS
    }
    rows["rest"] = {"carries": REST_DESCRIPTION["carries"], "limits": REST_DESCRIPTION["limits"]}
    for name, row in rows.items():
        assert (list(row["carries"]), list(row["limits"])) == (list(OPERATIONS), list(LIMIT_NAMES)), name
    assert documented("| | ") == {
        title: [rows[name]["carries"][key] or "not supported" for name in HEADS] for key, title in OPERATIONS.items()
    }
    assert documented("| at most | ") == {
        title: [rows[name]["limits"][key] for name in HEADS] for key, title in LIMIT_NAMES.items()
    }
    with Server(tmp_path) as server:
        told = Rest(server).get("/v1/protocols")["protocols"]
    assert {each["name"]: {"carries": each["carries"], "limits": each["limits"]} for each in told} == rows
    assert {each["name"]: each["versions"] for each in told}["sprout"] == ["0.0"]
    assert all(each["paths"] or each["listeners"] for each in told)


def documented(head: str) -> dict[str, list[str]]:
    """The rows of the table that begins with *head* in docs/protocols.md."""
    text = (ROOT / "docs/protocols.md").read_text()
    _, _, *lines = text[text.index("\n" + head) + 1 :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row[1:] for row in cells}


# Pins


def test_a_pinned_channel_is_called_so_everywhere(tmp_path: Path) -> None:
    pins = {"weather": {"topic_relay": "wx"}}

    async def scenario() -> None:
        relay, program = RelayClient(server.http), RestClient(server.http)
        async with relay, program:
            await relay.subscribe("wx")
            await program.subscribe("weather")
            await program.publish("weather", {"n": 1})
            assert (await relay.next()).channel == "wx"
            await relay.publish("wx", {"n": 2})
            assert [(await program.next()).content for _ in range(2)] == [{"n": 1}, {"n": 2}]
            with pytest.raises(ValueError, match="UnknownTopic"):
                await relay.subscribe("weather")  # what is said there would come back as another topic

    with Server(tmp_path, env={"TRELLIS_CHANNELS__PINS": json.dumps(pins)}) as server:
        run(scenario)
        channel = Rest(server).eventually("/v1/channels/weather", lambda answer: "community" in answer)
        with connect(f"ws://{server.http}/relay") as socket:
            socket.send('{"type":5,"topic":"wx","ask":"who and what is this?"}')
            info = json.loads(socket.recv(10))["info"]
    assert (channel["name"], channel["topic"], channel["stream"]) == ("weather", "wx", "weather")
    about = ("addresses", "topic", "stream", "partition", "community")
    assert {key: info[key] for key in about} == {key: channel[key] for key in about}, "as the topic relay's Info tells"
    assert (info["channel"], info.keys() - set(about)) == ("weather", {"channel", "version"})


@pytest.mark.parametrize(
    "pins",
    [
        {"weather": {"topic_relay": "x" * 31}},
        {"weather": {"sprout": "not an id"}},
        {"weather": {"streamr": "elsewhere"}},
        {"weather": {"carrier pigeon": "coo"}},
        {"we\nather": {"topic_relay": "wx"}},
        {"weather": {"topic_relay": "wx"}, "wind": {"topic_relay": "wx"}},
    ],
)
def test_an_impossible_pin_is_a_configuration_error(pins: dict[str, dict[str, str]]) -> None:
    with pytest.raises(config.BadConfiguration, match=r"channels\.pins"):
        config.load(ADAPTERS, flags={"channels.pins": pins})


def test_a_pin_that_comes_too_late_is_not_followed(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        httpx.put(f"http://{server.http}/v1/channels/weather").raise_for_status()
    with Server(tmp_path, env={"TRELLIS_CHANNELS__PINS": '{"weather": {"topic_relay": "wx"}}'}) as server:
        assert Rest(server).get("/v1/channels/weather")["topic"] == "weather"
        assert Rest(server).get("/v1/stats")["faults"]["pin"] == 1
    assert "a pin is not followed" in server.log
