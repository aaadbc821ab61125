"""Each ordered pair of protocols keeps the promises of the mapping, kind by kind.

A kind is a function; what differs between protocols stands in their Speakers. Against a deployed gateway:
`pytest tests/conformance --gateway URL`.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.conformance.room import ConformancePeers
from tests.conformance.speakers import SPEAKERS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(("speaker", "listener"), list(product(SPEAKERS, SPEAKERS))),
]

CONTENTS: dict[str, Any] = {
    "object": {"n": 1, "list": [1, 2.5, None, True], "nested": {"a": {"b": "c"}}},
    "text": {"content": "hello, forest"},
    "lines": {"content": "one\ntwo\r\nthree"},
    "string": "just a string",
    "number": 12345,
    "null": None,
    "true": True,
    "array": [1, "two", {"three": 3}],
    "empty": {},
    "empty text": {"content": ""},
    "reserved keys": {"type": 6, "topic": "elsewhere", "src": 99, "dst": 1, "error": "no"},
    "json key": {"json": {"a": 1}},
    "encrypted-like": {"encrypted": {"groupKeyId": "k", "content": "ab"}},
}

TEXTS = {
    "many scripts": {"content": "héllo wörld Ωμέγα Привет 日本語 العربية हिन्दी"},
    "beyond 16 bits": {"content": "\U0001f333 \U0001d11e \U0010ffff"},
    "combined": {"content": "e\u0301 \u1112\u1161\u11ab \U0001f469\u200d\U0001f680"},
    "line breaks of others": {"content": "a\u0085b\u2028c\u2029d\x0be"},
    "controls": {"content": "\x00\x01\x1f\x7f\t"},
    "quotes": {"content": '"quoted" \\ back / slash \''},
    "right to left": "\u202eabc\u202c \u061c",
    "keys": {"日本": {"\U0001f333": "ключ"}, "\u2028": 1, "": 2},
    "half a pair": ["\ud83c", "\udf33", "a\ud83cb"],
    "a byte order mark": "\ufeff\ufffe",
}

NOBODY = 1 << 40  # a number that nobody has


async def test_broadcast(room: ConformancePeers) -> None:
    """What is said is heard once, in order; by who says it only where its protocol does that."""
    await room.listener.subscribe(room.channel)
    await room.speaker.subscribe(room.channel)
    for content in CONTENTS.values():
        await room.speaker.publish(room.channel, content)
    heard, echo = await room.end(room.listener, room.speaker)
    assert [each.content for each in heard] == list(CONTENTS.values())
    assert {(each.channel, each.direct) for each in heard} == {(room.channel, False)}
    assert [each.content for each in echo] == (list(CONTENTS.values()) if room.speaker.echoes else [])


async def test_direct(room: ConformancePeers) -> None:
    """It reaches one peer and nobody else, no history either; who is not there is not found."""
    mine, number = [(await room.enter(each))["number"] for each in (room.speaker, room.listener)]
    others = await room.bystanders()
    secret = {"content": "a secret", "n": [1]}
    await room.speaker.direct(room.channel, number, secret)
    await room.speaker.direct(room.channel, mine, "to oneself")
    elsewhere = f"{room.channel} b"
    for channel, nobody in ((room.channel, NOBODY), (elsewhere, number)):
        refused = await room.speaker.refusal(room.speaker.direct(channel, nobody, "to nobody"))
        assert refused == room.speaker.refused
    at_listener, at_speaker, *at_others = await room.end(room.listener, room.speaker, *others)
    assert [(heard.content, heard.direct) for heard in at_listener] == [(secret, True)]
    assert [(heard.content, heard.direct) for heard in at_speaker] == [("to oneself", True)]
    assert at_others == [[], [], [], []]
    for who in (room.listener, *others):
        assert not await room.said_before(who), "it is in no history"


async def test_history(room: ConformancePeers) -> None:
    """Who comes later finds it, by its protocol's own means; where there are none, it hears what is said from then."""
    said = [{"n": 0}, {"content": "one"}, "two", [3]]
    for content in said:
        await room.speaker.publish(room.channel, content)
    await room.end()
    found = await room.said_before(room.listener)
    assert found == (None if room.listener.protocol == "topic_relay" else said)
    await room.listener.subscribe(room.channel)
    assert await room.heard() == [], "what was said before is not said again"


async def test_presence(room: ConformancePeers) -> None:
    """Who comes and who leaves is told where the protocol has a word for it, with its number."""
    told = room.listener.presence
    await room.listener.subscribe(room.channel)
    peer = await room.arrive()
    if room.listener.arrivals:
        assert await room.is_told(peer) is True
    await room.depart()
    assert peer["number"] not in await room.present()
    if room.listener.departures:
        assert await room.is_told(peer) is False
    assert await room.heard() == []
    assert told.empty(), "everything is told once, and it is not a message"
    await room.listener.leave(room.channel)
    peer = await room.arrive()
    await room.listener.subscribe(room.channel)
    assert await room.listener.listed() == ([peer["number"]] if room.listener.listing else None)
    if room.listener.telling:
        assert await room.is_told(peer) is True


async def test_duplicate(room: ConformancePeers) -> None:
    """The very same message, sent again, is answered as the first and goes nowhere; nor is it history twice."""
    await room.listener.subscribe(room.channel)
    content = {"n": 1, "twice": True}
    await room.speaker.say_twice(room.channel, content)
    assert await room.heard() == [content] * room.speaker.copies
    assert await room.said_before(room.witness) == [content] * room.speaker.copies


async def test_thread(room: ConformancePeers) -> None:
    """The answer to a message says to which, in each protocol's words: `inReplyTo`, or the parent of a node."""
    await room.speaker.subscribe(room.channel)
    await room.listener.subscribe(room.channel)
    await room.listener.publish(room.channel, {"content": "a question"})
    (asked,) = await room.end(room.speaker)
    (kept,) = await room.kept()
    await room.speaker.answer(asked[0], kept["id"], {"content": "the answer"})
    *_, heard = (await room.end(room.listener))[0]
    assert heard.content["content"] == "the answer"
    assert room.listener.answered(heard) in (kept["id"], kept["native"].get(room.listener.protocol))
    _, answer = await room.kept()
    assert answer["inReplyTo"] == kept["id"]


async def test_oversized(room: ConformancePeers) -> None:
    """What does not fit a protocol is not heard there, counted and listed; never cut, and accepted all the same."""
    await room.listener.subscribe(room.channel)
    unfit, content = room.speaker.too_long_for, room.speaker.oversized
    before = {protocol: await room.undeliverable(protocol) for protocol in unfit}
    await room.speaker.publish(room.channel, content)
    assert await room.heard() == ([] if room.listener.protocol in unfit else [content])
    (kept,) = await room.kept()
    assert kept["content"] == content
    assert set(kept["undelivered"]) == unfit
    for protocol, was in before.items():
        assert await room.undeliverable(protocol) > was


async def test_oversized_direct(room: ConformancePeers) -> None:
    """What does not fit the protocol of the one it is for is told to have reached nobody."""
    number = (await room.enter(room.listener))["number"]
    speaker, content = room.speaker, room.speaker.oversized
    saying = speaker.direct(room.channel, number, content)
    if room.listener.protocol in speaker.too_long_for:
        assert await speaker.refusal(saying) == speaker.refused
        assert await room.end(room.listener) == [[]]
    else:
        await saying
        ((heard,),) = await room.end(room.listener)
        assert (heard.content, heard.direct) == (content, True)


async def test_unicode(room: ConformancePeers) -> None:
    """Every character arrives, in keys as in values."""
    await room.listener.subscribe(room.channel)
    for content in TEXTS.values():
        await room.speaker.publish(room.channel, content)
    assert await room.heard() == list(TEXTS.values())
