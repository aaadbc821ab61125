"""Subscriptions of the Python client miss and repeat no message across lost connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest

from gateway.client import Event, Gap, Interrupted, Joined, Left, Message, Subscription, TrellisClient, Welcome
from tests.ports import reserved_port
from tests.server import Server

pytestmark = pytest.mark.anyio
SECONDS = 30.0


@pytest.fixture
def channel() -> str:
    return f"heard {uuid4().hex}"


async def until(events: Subscription, kind: type[Event]) -> Any:
    """The next event of a *kind*."""
    with anyio.fail_after(SECONDS):
        async for event in events:
            if isinstance(event, kind):
                return event
    raise AssertionError("the subscription ended")


async def hear(events: Subscription, count: int) -> list[Any]:
    """The contents of the next messages."""
    return [(await until(events, Message)).content for _ in range(count)]


async def test_a_lost_connection_loses_nothing_not_even_before_the_first_message(
    server: Server, channel: str, proxied: Callable[[str], Any]
) -> None:
    async with (
        proxied(server.http) as proxy,
        TrellisClient(server.http) as trellis,
        TrellisClient(proxy.address) as lossy,
        lossy.subscribe(channel) as events,
    ):
        await until(events, Welcome)
        await proxy.lose()
        await trellis.publish(channel, 0)
        assert isinstance(await until(events, Interrupted), Interrupted)
        assert await hear(events, 1) == [0]
        for n in range(1, 4):
            await trellis.publish(channel, n)
        assert await hear(events, 2) == [1, 2]
        await proxy.lose()
        await trellis.publish(channel, 4)
        assert await hear(events, 2) == [3, 4]


async def test_a_subscription_outlives_the_gateway(tmp_path: Path) -> None:
    port = str(reserved_port())
    first = Server(tmp_path / "data", "--port", port)
    async with TrellisClient(first.http) as trellis, trellis.subscribe("lobby") as events:
        await until(events, Welcome)
        await trellis.publish("lobby", 0)
        await trellis.publish("lobby", 1)
        assert await hear(events, 1) == [0]
        first.kill()
        with Server(tmp_path / "data", "--port", port) as second:
            async with TrellisClient(second.http) as other:
                await other.publish("lobby", 2)
                assert await hear(events, 2) == [1, 2]
                await other.publish("lobby", 3)
                assert await hear(events, 1) == [3]
            assert second.stop() == 0
            assert (await until(events, Interrupted)).reason == "the gateway ended the stream: the gateway is stopping"


async def test_a_subscription_to_channels_and_patterns_resumes_all_of_them(
    server: Server, channel: str, proxied: Callable[[str], Any]
) -> None:
    """Names and patterns may have any characters; a pattern also hears channels that begin later."""
    one, other, prefix = f"{channel} one,*", f"{channel} other", f"{channel}, &more/"
    async with (
        proxied(server.http) as proxy,
        TrellisClient(server.http) as trellis,
        TrellisClient(proxy.address) as lossy,
        lossy.subscribe(one, other, patterns=[f"{prefix}*"]) as events,
    ):
        welcomes = [await until(events, Welcome) for _ in range(3)]
        assert [(each.channel, each.pattern) for each in welcomes] == [(one, None), (other, None), (None, f"{prefix}*")]
        for number, name in enumerate((one, f"{prefix}x", other, f"{prefix}y", f"{channel} third")):
            await trellis.publish(name, number)
        heard = [await until(events, Message) for _ in range(3)]
        await proxy.lose()
        await trellis.publish(other, 5)
        heard += [await until(events, Message) for _ in range(2)]
        told = [(each.channel, each.content) for each in heard]
        assert told == [(one, 0), (f"{prefix}x", 1), (other, 2), (f"{prefix}y", 3), (other, 5)]
        assert events.last == heard[-1].sequence


async def test_a_subscription_tracks_the_peers_of_each_channel(server: Server, channel: str) -> None:
    other = f"{channel} too"
    async with TrellisClient(server.http) as trellis, trellis.subscribe(channel, other) as events:
        await until(events, Welcome)
        await until(events, Welcome)
        async with trellis.subscribe(channel, other) as second:
            number = (await until(second, Welcome)).peer.number
            joined = [await until(events, Joined) for _ in range(2)]
            assert {each.channel for each in joined} == {channel, other}
            assert events.peers.keys() == events.peers_in(channel).keys() == events.peers_in(other).keys() == {number}
        left = await until(events, Left)
        assert events.peers_in(left.channel) == {}
        assert events.peers.keys() == {number}, "until it has left the other one too"
        await until(events, Left)
        assert events.peers == {}


async def test_the_resume_position_follows_the_last_returned_message(server: Server, channel: str) -> None:
    """Messages arrive several at a time; a program that stores its place after each of them loses none."""
    async with TrellisClient(server.http) as trellis:
        said = [receipt.sequence async for receipt in trellis.publish_many(channel, range(5))]  # type: ignore[union-attr]
        async with trellis.subscribe(channel, after=said[0] - 1) as events:
            for sequence in said:
                assert (await until(events, Message)).sequence == events.last == sequence


async def test_a_cancelled_wait_misses_nothing(server: Server, channel: str) -> None:
    async with TrellisClient(server.http) as trellis, trellis.subscribe(channel) as events:
        await until(events, Welcome)
        for n in range(3):
            with anyio.move_on_after(0.02) as scope:
                await anext(events)
            assert scope.cancelled_caught
            await trellis.publish(channel, n)
            assert await hear(events, 1) == [n]


async def test_a_slow_consumer_is_disconnected_and_still_receives_everything(server: Server, channel: str) -> None:
    async with TrellisClient(server.http) as trellis, trellis.subscribe(channel) as events:
        await until(events, Welcome)
        for n in range(30):
            await trellis.publish(channel, {"n": n, "long": "x" * 500_000})
        found = httpx.get(f"http://{server.http}/metrics").text
        assert 'trellis_overflows_total{protocol="rest"}' in found
        assert [content["n"] for content in await hear(events, 30)] == list(range(30))


async def test_the_end_of_the_client_ends_its_subscriptions(server: Server, channel: str) -> None:
    async with TrellisClient(server.http) as trellis:
        events = trellis.subscribe(channel)
        await until(events, Welcome)
    assert [event async for event in events] == []
    async with TrellisClient(server.http) as trellis:
        with anyio.fail_after(SECONDS):
            while await trellis.peers(channel):
                await anyio.sleep(0.01)


async def test_another_task_may_end_a_subscription_that_waits(server: Server, channel: str) -> None:
    async def listen() -> None:
        async for event in events:
            assert isinstance(event, Welcome)

    async with TrellisClient(server.http) as trellis:
        events = trellis.subscribe(channel)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                while not await trellis.peers(channel):
                    await anyio.sleep(0.01)
                await events.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"], scope="module")
async def test_messages_that_are_no_longer_kept_appear_as_a_gap(tmp_path: Path) -> None:
    small = {"TRELLIS_LOG__SEGMENT_BYTES": "4096"}
    with Server(tmp_path / "data", env=small) as server:
        async with TrellisClient(server.http) as trellis:
            said = [await trellis.publish("lobby", str(n) * 2_000) for n in range(6)]
    retire(tmp_path / "data")
    with Server(tmp_path / "data", env=small) as server:
        async with TrellisClient(server.http) as trellis, trellis.subscribe("lobby", after=said[0].sequence) as events:
            gap = await until(events, Gap)
            message = await until(events, Message)
    assert gap.after == said[0].sequence
    assert said[1].sequence < gap.before <= message.sequence


def retire(data: Path) -> None:
    """What retention does to all segments but the newest, and an index that is made anew."""
    *old, _ = sorted((data / "log").glob("0*.jsonl"))
    for path in old:
        facts = [line for line in path.read_bytes().splitlines(keepends=True) if b'"kind":"message"' not in line]
        path.with_name(path.name.replace(".jsonl", ".facts.jsonl")).write_bytes(b"".join(facts))
        path.unlink()
    for path in data.glob("index.sqlite*"):
        path.unlink()
