"""All peers of one gateway share one order, one history and exact texts, and disturb no others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count

import pytest

from tests.conformance.conftest import RUN
from tests.conformance.speakers import SPEAKERS, Address, RelaySpeaker, RestSpeaker, Speaker

pytestmark = pytest.mark.anyio

numbers = count()


@pytest.fixture
def channel() -> str:
    """A channel that nobody has been in."""
    return f"together {RUN} {next(numbers)}"


def someone(gateway: Address, protocol: str, who: int = 0) -> Speaker:
    """A peer of *protocol*, the one with that key where keys are needed."""
    return SPEAKERS[protocol](gateway, ("alice", "bob", "bob")[who], gateway.keys[who])


def program(gateway: Address) -> RestSpeaker:
    """Somebody who asks REST."""
    return RestSpeaker(gateway.http, gateway.keys[2])


@pytest.mark.parametrize("speaker", SPEAKERS)
async def test_all_listeners_receive_the_same_order(gateway: Address, channel: str, speaker: str) -> None:
    async with AsyncExitStack() as stack:
        mouth = await stack.enter_async_context(someone(gateway, speaker))
        ears = [await stack.enter_async_context(someone(gateway, protocol, 1)) for protocol in SPEAKERS]
        for ear in ears:
            await ear.subscribe(channel)
        for number in range(50):
            await mouth.publish(channel, {"n": number})
        for ear in ears:
            assert [(await ear.next()).content["n"] for _ in range(50)] == list(range(50)), ear.protocol


@pytest.mark.parametrize("speaker", SPEAKERS)
async def test_history_has_each_message_with_its_sender(gateway: Address, channel: str, speaker: str) -> None:
    async with someone(gateway, speaker) as mouth, program(gateway) as ear:
        await ear.subscribe(channel)
        await mouth.publish(channel, {"n": 1})
        await ear.next()
        (message,) = (await ear.get(channel))["messages"]
        assert message["content"] == {"n": 1}
        assert message["sender"]["protocol"] == speaker, "whoever has a key speaks it all the same"
        assert await ear.get(channel, f"/messages/{message['id']}") == message


async def test_exact_numbers_and_odd_spacing_pass_through(gateway: Address, channel: str) -> None:
    text = '{"type":6,"topic":"CHANNEL","n": 12345678901234567890123 , "f":1.10, "e":1E5}'
    async with program(gateway) as ear, await RelaySpeaker(gateway.http, gateway.keys[0]).dial() as socket:
        await ear.subscribe(channel)
        await socket.send(text.replace("CHANNEL", channel))
        await ear.next()
        body = (await ear.client.get(f"/v1/channels/{channel}/messages")).text
        assert '12345678901234567890123 , "f":1.10, "e":1E5}' in body


@pytest.mark.parametrize("bad", SPEAKERS)
async def test_malformed_input_of_one_peer_disturbs_no_other(gateway: Address, channel: str, bad: str) -> None:
    async with AsyncExitStack() as stack:
        peer, mouth = [await stack.enter_async_context(each) for each in (someone(gateway, bad), program(gateway))]
        ears = [await stack.enter_async_context(someone(gateway, protocol, 1)) for protocol in SPEAKERS]
        for ear in ears:
            await ear.subscribe(channel)
        await asyncio.gather(peer.babble(), *(mouth.publish(channel, {"n": number}) for number in range(5)))
        for ear in ears:
            assert sorted([(await ear.next()).content["n"] for _ in range(5)]) == [0, 1, 2, 3, 4], ear.protocol


async def test_a_channel_has_a_name_on_each_protocol(gateway: Address, channel: str) -> None:
    async with someone(gateway, "sprout") as mouth, program(gateway) as reader:
        await mouth.publish(channel, {"n": 1})
        found = await reader.get(channel, "")
    assert found["topic"] == found["stream"] == found["name"] == channel
    assert found["community"].startswith("SHA512_B32__")
