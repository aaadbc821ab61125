"""Texts chosen by a peer have limits, which are checked before the texts are stored or looked up."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adapters.streamr.rest import responses
from adapters.streamr.sessions.session import StreamrSession
from adapters.streamr.wire.checks import MAX_ID, MAX_KEY, MAX_LENGTHS, MAX_NAME
from adapters.streamr.wire.codec import _decode_any, decode_control, decode_publish_fast
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import decode_message, decode_message_fast
from adapters.streamr.wire.network import decode_network
from adapters.streamr.wire.tracker import decode_tracker

LONG = "x" * 100_000
GROWTH = 4 << 20  # bytes that caches may grow by, whatever a thousand requests of 100 kB say


def held(root: Any) -> int:
    """The bytes of all texts that can be reached from *root*, of the gateway's own objects and of its caches."""
    seen: set[int] = set()
    waiting, size = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ in ("module", "function", "frame"):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes | bytearray):
            size += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return size


def requests(publisher: Any, now: int) -> Iterator[list[Any]]:
    """Requests of every type, with one text that is too long in each place."""
    for number in range(1_000):
        name = f"{number}{LONG}"
        key_exchange = f"SYSTEM/keyexchange/{name}"
        row: list[Any] = [32, ["s", 0, now, number, "", ""], None, 27, 0, 0, None, "1", None, 0, None]
        stream = [32, [name, 0, now, 0, "", ""], *row[2:]]
        author = [32, ["s", 0, now, 0, name, ""], *row[2:]]
        chain = [32, ["s", 0, now, 0, "", name], *row[2:]]
        key = [*row[:5], 2, name, *row[7:]]
        frames: list[list[Any]] = [
            [2, 9, "r", name, 0, None],
            [2, 9, "r", key_exchange, 0, None],
            [2, 9, name, "s", 0, None],
            [2, 9, "r", "s", 0, name],
            [2, 9, "r", f"{name}/@7", 0, None],
            [2, 10, "r", name, 0],
            [2, 11, "r", name, 0, 1, None],
            [2, 11, name, "s", 0, 1, None],
            *([2, 8, "r", message, None] for message in (stream, author, chain, key)),
            [2, 8, "r", [32, [key_exchange, *row[1][1:]], None, 28, *row[4:]], None],
        ]
        yield from frames
        if number % 100 == 0:  # to sign takes a while
            yield [2, 8, "r", publisher.message(key_exchange, ["r"], now, number, kind=28), None]


@pytest.mark.slow
def test_nothing_that_is_refused_for_its_length_is_remembered(broker: Any, alice: Any) -> None:
    session = broker.open()
    before = held(broker.adapter)
    for frame in requests(alice, broker.clock()):
        (answer,) = broker.ask(session, frame)
        assert answer[1] == 7
        assert len(json.dumps(answer)) < 4 * MAX_ID, "nor is it repeated"
    assert held(broker.adapter) - before < GROWTH


@pytest.mark.parametrize("name", sorted(MAX_LENGTHS))
def test_every_limit_is_one_of_a_field(name: str) -> None:
    assert MAX_NAME <= MAX_LENGTHS[name] <= MAX_KEY


# fmt: off
TOO_LONG: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "requestId":      (decode_control, [2, 9, LONG, "s", 0, None]),
    "streamId":       (decode_control, [2, 9, "r", LONG, 0, None]),
    "sessionToken":   (decode_control, [2, 9, "r", "s", 0, LONG]),
    "apiKey":         (decode_control, [1, 9, "s", 0, LONG, None]),
    "publisherId":    (decode_control, [2, 12, "r", "s", 0, [1, 0], LONG, None]),
    "msgChainId":     (decode_control, [2, 13, "r", "s", 0, [1, 0], [2, 0], "p", LONG, None]),
    "errorMessage":   (decode_control, [2, 7, "r", LONG, "CODE"]),
    "errorCode":      (decode_control, [2, 7, "r", "text", LONG]),
    "source":         (decode_network, ["4.4.3", 2, LONG, "s"]),
    "streamId ":      (decode_network, {"version": "5.0.0", "code": 2, "payload": {"streamId": LONG}}),
    "nodeAddresses":  (decode_network, ["4.4.3", 1, "n", "s", [LONG]]),
    "requestId ":     (decode_tracker, [2, 1, LONG, {}]),
    "streamId  ":     (decode_tracker, [2, 3, "r", LONG, 0]),
    "targetNode":     (decode_tracker, [2, 5, "r", {}, LONG, "sub", {}]),
    "subType":        (decode_tracker, [2, 5, "r", {}, "node", LONG, {}]),
}
# fmt: on


@pytest.mark.parametrize("name", TOO_LONG)
def test_each_decoder_names_the_field_that_is_too_long(name: str) -> None:
    decode, value = TOO_LONG[name]
    with pytest.raises(StreamrError, match=rf"Expected {name.strip()}(\[0\])? to have at most \d+ characters\."):
        decode(json.dumps(value).encode())


def row(**fields: Any) -> list[Any]:
    """A message as the libraries write it."""
    message_id = ["s", 0, 1, 0, "p", "c"]
    for place, name in ((0, "streamId"), (4, "publisherId"), (5, "msgChainId")):
        message_id[place] = fields.get(name, message_id[place])
    content = fields.get("content", '"1"')
    return [32, message_id, None, 27, 0, 2, fields.get("groupKeyId"), content, None, 2, fields.get("signature", "0x")]


@pytest.mark.parametrize("name", ["streamId", "publisherId", "msgChainId", "groupKeyId", "signature"])
def test_the_fast_message_decoder_has_the_same_limits(name: str) -> None:
    for size, fits in ((MAX_LENGTHS[name], True), (MAX_LENGTHS[name] + 1, False)):
        value = row(**{name: "y" * size})
        wire = json.dumps(value, separators=(",", ":")).encode()
        assert (decode_message_fast(wire) is not None) is fits
        frame = b'[2,8,"r",%b,null]' % wire
        assert (decode_publish_fast(frame) is not None) is fits
        if fits:
            assert decode_message(value, wire) == decode_message_fast(wire)
            continue
        with pytest.raises(StreamrError, match=f"Expected {name} to have at most"):
            decode_control(frame)


@pytest.mark.parametrize("place", ["requestId", "signature"])
def test_the_fast_request_decoder_has_the_same_limits(place: str) -> None:
    size = MAX_LENGTHS[place]
    for length, fits in ((size, True), (size + 1, False)):
        text = "z" * length
        value = [2, 8, text, row(), None] if place == "requestId" else [2, 8, "r", row(signature=text), None]
        frame = json.dumps(value, separators=(",", ":")).encode()
        fast = decode_publish_fast(frame)
        if fits:
            assert decode_control(frame) == _decode_any(frame)
            assert fast is not None or place == "requestId", "a request id near the limit is read the long way"
            continue
        assert fast is None
        with pytest.raises(StreamrError, match=f"Expected {place} to have at most"):
            decode_control(frame)


def test_long_content_is_accepted(broker: Any, unsigned: Any) -> None:
    session: StreamrSession = broker.open()
    assert broker.ask(session, [2, 8, "r", unsigned("s", {"text": LONG}, broker.clock()), None]) == []


# By REST


PATHS = (
    "/streams/{}",
    "/streams/{}/publishers",
    "/streams/s/publisher/{}",
    "/streams/{}/data/partitions/0/last",
    "/{}",
)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_too_long_is_refused_and_forgotten(broker: Any, make_caller: Any, path: str) -> None:
    call = make_caller(broker)
    before = held(broker.adapter)
    for number in range(50):
        answer = call("GET", path.format(f"{number}{LONG[:60_000]}"))
        assert answer.status_code == 414
        assert len(answer.content) < MAX_ID
    assert held(broker.adapter) - before < GROWTH
    assert call("GET", "/streams", params={"search": LONG[:60_000]}).status_code == 414


def test_a_name_that_is_too_long_is_refused(broker: Any, make_caller: Any) -> None:
    call, name = make_caller(broker), "x" * (MAX_NAME + 1)
    for path in PATHS[:-1]:
        assert call("GET", path.format(name)).status_code == 400
    assert call("POST", "/streams", json={"id": name}).status_code == 400
    assert call("POST", "/streams/s/data", params={"address": name}, content="1").status_code == 400
    assert call("POST", f"/login/challenge/{name}").status_code == 400


@pytest.mark.parametrize("name", ["x" * 255, "日" * 255, "\U0001f333" * 200])
def test_the_longest_names_fit(broker: Any, make_caller: Any, name: str) -> None:
    call = make_caller(broker)
    assert call("POST", "/streams", json={"id": name}).status_code == 200
    answer = call("GET", "/streams/" + "".join(f"%{byte:02X}" for byte in name.encode()))
    assert answer.json()["id"] == name
    assert responses.MAX_TARGET > 3 * 4 * MAX_NAME
