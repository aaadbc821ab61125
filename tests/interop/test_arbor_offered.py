"""Genuine relays and gateways that dial in late get all offered nodes, can verify them, and follow new ones."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.arbor import WAIT, Arbor, arbor, require_arbor, run
from tests.forests import digest_of, is_odd, make_crowd, write_forest
from tests.server import Server

from .test_arbor_relay import QUIET, caught_up, names, secure, trellis

SECONDS = 3  # until something expires
FAILED = re.compile(r"(?i)^.*(?:couldn't|failed|unable|validat|timed out).*$", re.MULTILINE)


@pytest.fixture(scope="module")
def program() -> Path:
    return require_arbor()


async def loaded(program: Path, server: Server, expected: set[str]) -> tuple[Any, Arbor]:
    """A genuine relay that dials in, and has loaded what there is, which has the *expected* nodes."""
    dialling = arbor(program, "relay", "-peers", server.ready["sprout_tls"])
    relay = await dialling.__aenter__()
    async with asyncio.timeout(WAIT):
        while "Finished synchronizing" not in relay.log:
            assert not FAILED.findall(relay.log), relay.log
            await asyncio.sleep(0.05)
    await relay.settle(0.2, lambda: expected <= set(relay.ids("stored")))
    return dialling, relay


def test_after_something_has_expired(program: Path, tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with arbor(program, server.sprout) as client, httpx.AsyncClient(timeout=WAIT, verify=False) as http:
            community = (await client.do("community woods"))["id"]
            end = datetime.now(UTC) + timedelta(seconds=SECONDS)
            short = (await client.do(f"twig {community} expiration/1={end:%Y-%m-%dT%H:%M:%SZ} short"))["id"]
            below = (await client.do(f"say {short} below"))["id"]
            said = {(await client.do(f"say {community} number {number}"))["id"] for number in range(20)}
            await asyncio.sleep((end - datetime.now(UTC)).total_seconds())
            answer = {"content": "an answer", "inReplyTo": below}
            path = f"https://{server.http}/v1/channels/woods/messages"
            (await http.post(path, json=answer)).raise_for_status()
            dialling, relay = await loaded(program, server, said)
            if not [line for line in relay.events if "an answer" in line.get("content", "")]:
                relay.events.append(await relay.next("stored", content="an answer"))
            stored = {line["id"]: line for line in relay.events if line.get("type") == "reply"}
            assert said < stored.keys()
            assert not {short, below} & stored.keys()
            (answered,) = [line for line in stored.values() if "an answer" in line["content"]]
            assert answered["depth"] == 2, "below the conversation of its day"
            env = {"TRELLIS_SPROUT__PEERS": json.dumps([f"tcp://{server.sprout}"])}
            with Server(tmp_path / "second", env=env) as second:
                await caught_up(second, 1)
                await client.do(f"say {community} later")
                await relay.next("stored", content="later")
                path = f"http://{second.http}/v1/channels/woods/messages"
                async with asyncio.timeout(WAIT):
                    while len(told := (await http.get(path)).json()["messages"]) < len(said) + 2:
                        await asyncio.sleep(0.05)
                assert not [each for each in told if each["content"].get("content") in ("short", "below")]
            await dialling.__aexit__(None, None, None)

    flags = secure(tmp_path / "certs")
    with Server(tmp_path / "first", *flags) as server:
        run(partial(scenario, server))
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_after_retention(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRELLIS_LOG__SEGMENT_BYTES", "16384")
    (community, *_) = write_forest(tmp_path / "grove", "old", 600, communities=1).values()
    trellis("import", "--grove", str(tmp_path / "grove"), "--data", str(tmp_path / "data"))

    async def scenario(server: Server) -> None:
        async with arbor(program, server.sprout) as client, httpx.AsyncClient(timeout=WAIT, verify=False) as http:
            async with asyncio.timeout(WAIT):  # retention looks a second after the start
                while not list((tmp_path / "data").rglob("*.facts.jsonl")):
                    await asyncio.sleep(0.05)
            await client.do("bootstrap")
            await client.settle(0.2)
            assert not FAILED.findall(client.log)
            got = set(client.ids("stored")) & names(tmp_path / "grove")
            path = f"https://{server.http}/v1/channels/old community 0/messages"
            left = (await http.get(path, params={"limit": 256})).json()["messages"]
            dialling, relay = await loaded(program, server, got)
            assert left
            await client.do(f"say {community} later")
            await relay.next("stored", content="later")
            await relay.settle(QUIET)
            assert not FAILED.findall(relay.log)
            await dialling.__aexit__(None, None, None)

    flags = secure(tmp_path / "certs")
    with Server(tmp_path / "data", *flags, env={"TRELLIS_LOG__KEEP_BYTES": "400000"}) as server:
        run(partial(scenario, server))
        assert server.stop() == 0
        assert "Traceback" not in server.log


def test_a_relay_that_dialled_in_follows_new_communities(program: Path, tmp_path: Path) -> None:
    """A community that begins on the relay, and one that begins on the gateway: both are heard on both."""

    async def scenario(server: Server) -> None:
        async with (
            arbor(program, "relay", "-peers", server.ready["sprout_tls"]) as relay,
            httpx.AsyncClient(timeout=WAIT, verify=False) as http,
        ):
            async with asyncio.timeout(WAIT):
                while not (await http.get(f"https://{server.http}/v1/stats")).json()["connections"]:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)  # it loads what there is: nothing
            async with arbor(program, relay.ready["plain"]) as member:
                community = (await member.do("community woods"))["id"]
                await member.do(f"subscribe {community}")
                path = f"https://{server.http}/v1/channels/woods/messages"
                async with asyncio.timeout(WAIT):
                    while (await http.get(path)).status_code != 200:
                        await asyncio.sleep(0.05)
                await member.do(f"say {community} begun there")
                async with asyncio.timeout(WAIT):
                    while not (told := (await http.get(path)).json()["messages"]):
                        await asyncio.sleep(0.05)
                assert [each["content"] for each in told] == [{"content": "begun there"}]
                (await http.post(path, json={"content": "an answer"})).raise_for_status()
                await member.next("announced", content="an answer")
                (await http.post(path.replace("woods", "here"), json={"content": "one"})).raise_for_status()
                await relay.next("stored", type="community", name="here")
                async with asyncio.timeout(WAIT):
                    while True:  # until it follows
                        (await http.post(path.replace("woods", "here"), json={"content": "more"})).raise_for_status()
                        await relay.settle(0.1)
                        if any(line.get("content") == "more" for line in relay.events):
                            break

    flags = secure(tmp_path / "certs")
    with Server(tmp_path / "data", *flags) as server:
        run(partial(scenario, server))
        assert server.stop() == 0
        assert "Traceback" not in server.log


async def converse(http: httpx.AsyncClient, relay: Arbor, client: Arbor, ids: list[str], listed: set[str]) -> None:
    """Say something in each community; the *client* answers where it is *listed*."""
    relay.events.clear()
    for id in ids:
        path = f"/v1/channels/lobby~{digest_of(id)[:6]}/messages"
        (await http.post(path, json={"content": id})).raise_for_status()
        question = await relay.next("stored", type="reply", community=id, content=id)
        if id in listed:
            await client.next("stored", id=question["id"])
            said = await client.do(f"say {question['id']} an answer")
            await relay.next("stored", id=said["id"])
            asked, answer = (await http.get(path)).json()["messages"]
            assert answer["content"] == {"content": "an answer", "inReplyTo": asked["id"]}


def test_genuine_programs_follow_ten_thousand_communities_with_any_id(program: Path, tmp_path: Path) -> None:
    """All have one name. A relay is there when they begin; a client comes later, and lists the newest thousand."""
    identity, communities = make_crowd(10_000)
    ids = {line.partition(" ")[0] for line in communities}
    odd = [id for id in ids if is_odd(id)]

    async def scenario(server: Server) -> None:
        async with (
            arbor(program, "relay", "-peers", server.ready["sprout_tls"]) as relay,
            httpx.AsyncClient(base_url=f"https://{server.http}", timeout=WAIT, verify=False) as http,
        ):
            await relay.settle(0.5)  # it lists what there is: nothing
            await begin(server, identity, communities)
            async with asyncio.timeout(WAIT):
                while relay.log.count("Received leaves_of") < len(ids):  # what it is asked when it follows one
                    await relay.settle(0.1)
            assert ids <= set(relay.ids("stored"))
            async with arbor(program, server.sprout) as client:
                await client.do("bootstrap")
                await client.settle(0.2, lambda: len(ids & set(client.ids("stored"))) >= 1024)
                listed = ids & set(client.ids("stored"))
                assert len(listed) == 1024
                assert len(listed.intersection(odd)) >= 25
                await converse(http, relay, client, odd, listed)
                assert not FAILED.findall(client.log)
            assert not FAILED.findall(relay.log)

    flags = secure(tmp_path / "certs")
    with Server(tmp_path / "data", *flags) as server:
        run(partial(scenario, server))
        assert server.stop() == 0
        assert "Traceback" not in server.log


async def begin(server: Server, identity: str, communities: list[str]) -> None:
    """Announce *communities*; they are on disk then."""
    host, _, port = server.sprout.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    for at in range(0, len(communities), 1000):
        nodes = [identity, *communities[at : at + 1000]]
        writer.write("\n".join((f"announce {at} {len(nodes)}", *nodes, "")).encode())
        assert await asyncio.wait_for(reader.readline(), WAIT) == b"status %d 0\n" % at
    writer.close()
