"""Every decoder returns a value or raises its documented error, however a genuine frame is mutated.

The frames are those of the vectors: what the libraries, genuine clients and the reference's broker wrote.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.crypto.group_keys import parse_key_message
from adapters.streamr.crypto.signing import verify
from adapters.streamr.dump_files import read_dump
from adapters.streamr.publishing.conversion import ids_of
from adapters.streamr.wire.checks import MAX_ID
from adapters.streamr.wire.codec import decode_control, encode
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import parse_message
from adapters.streamr.wire.message_layouts import LAYOUTS
from adapters.streamr.wire.network import decode_network
from adapters.streamr.wire.tracker import decode_tracker
from gateway.adapter import ConnectionRequest
from gateway.core.principal import Principal

pytestmark = pytest.mark.slow  # hundreds of examples each

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"

# What stands where something else stood: kinds of values, and the limits of what reads them.
# fmt: off
ODD: list[Any] = [
    None, True, -1, 0, 1, 2, 7, 28, 29, 30, 31, 32, 2**31, 2**53, 2**64, 10**400, 1.5, 2.0, -0.0, 1e308, "", "0",
    "9", "x", "\ud800", "é\U0001f333\x00\x1b[31m", "x" * 2_000, "0x" + "0" * 130, [], {}, [[]], [None], {"a": 1},
    "[]", "[1,[2]]", "{}",
]
TEXTS = ["1e999", "-0", "1" * 5_000, "NaN", "[" * 300 + "]" * 300, '"\\ud800"', "\ufeff1", "nul", ""]
# fmt: on


def arrays(value: Any) -> Iterator[Any]:
    """Every array that begins with a number, and every object with a code, anywhere in the vectors."""
    if isinstance(value, str) and value[:1] in "[{":
        try:
            value = json.loads(value)
        except ValueError:
            return
    if (isinstance(value, list) and len(value) > 2 and type(value[0]) is int) or (
        isinstance(value, dict) and {"version", "code"} <= value.keys()
    ):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from arrays(inner)


def genuine() -> list[Any]:
    found = {}
    for path in sorted(VECTORS.rglob("*.json")):
        for value in arrays(json.loads(path.read_text())):
            text = json.dumps(value)
            if len(text) < 20_000:
                found[text] = value
    return list(found.values())


GENUINE = genuine()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in *value*."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


def put(value: Any, at: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """*value* with something else at a place."""
    if not at:
        return change(value)
    made = copy.copy(value)
    made[at[0]] = put(value[at[0]], at[1:], change)
    return made


def always(odd: Any) -> Callable[[Any], Any]:
    """Puts *odd* where anything stood."""
    return lambda _: odd


def shortened(value: Any) -> Any:
    return value[:-1] if isinstance(value, list | str) else None


def doubled(value: Any) -> Any:
    return [*value, *value] if isinstance(value, list) else value


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A genuine frame with up to three things done to it."""
    value = draw(st.sampled_from(GENUINE))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.sampled_from(list(places(value))))
        odd = draw(st.sampled_from(ODD))
        value = put(value, at, draw(st.sampled_from([always(odd), shortened, doubled])))
    try:
        text = json.dumps(value, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])), ensure_ascii=False)
        data = text.encode()
    except UnicodeEncodeError:
        data = json.dumps(value).encode()
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(data)))
        data = (
            data[:cut]
            + draw(st.sampled_from(TEXTS)).encode(errors="surrogatepass")
            + data[cut + draw(st.integers(0, 4)) :]
        )
    return data


def control(data: bytes) -> None:
    frame = decode_control(data)
    for version in (1, 2):
        encode(frame, version)


def message(data: bytes) -> None:
    """Whatever is asked of a message that was read."""
    found = parse_message(data)
    for version in LAYOUTS:
        found.encode(version)
    found.json_content()
    ids_of(found)
    verify(found)
    parse_key_message(found)


# fmt: off
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "control": control,
    "message": message,
    "network": decode_network,
    "tracker": decode_tracker,
    "dumps":   lambda data: list(read_dump(data)),
}
# fmt: on


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_returns_a_value_or_raises_its_documented_error(name: str) -> None:
    @given(mutated())
    @settings(deadline=None, max_examples=600, suppress_health_check=list(HealthCheck))
    def holds(data: bytes) -> None:
        allowed = (StreamrError, ValueError) if name == "dumps" else StreamrError
        error = None
        try:
            DECODERS[name](data)
        except allowed as found:
            error = found
        assert len(getattr(error, "request_id", "")) <= MAX_ID

    holds()


@pytest.mark.parametrize("path", ["/api/v1/ws", "/network", "/tracker"])
@pytest.mark.parametrize("versions", [{}, {"controlLayerVersion": "1", "messageLayerVersion": "31"}])
def test_a_session_answers_and_lives(make_broker: Any, path: str, versions: dict[str, str]) -> None:
    broker = make_broker(streams={"read": {"decrypt": True}, "sealed": {"require_encrypted_data": True}})
    open_one = partial(broker.adapter.accept, ConnectionRequest(Principal("streamr:anonymous"), path, versions))

    @given(st.lists(mutated(), max_size=6), st.booleans())
    @settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
    def holds(frames: list[bytes], wrapped: bool) -> None:
        session = open_one()
        wrap = wrapped and path == "/network"
        for data in frames:
            session.receive_data(b'["4.4.3",4,"n",' + data + b"]" if wrap else data)
            for answer in session.data_to_send():
                assert len(answer) < 1 << 21
        assert session.closing is None
        session.receive_eof()

    holds()


@pytest.mark.parametrize("path", ["/api/v1/ws", "/network", "/tracker"])
def test_malformed_input_is_recorded_for_its_session(broker: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    session = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), path, {}))
    offences: list[int] = []
    monkeypatch.setattr(session, "record_malformed", lambda: offences.append(1))
    for data in (b"nonsense", b"[2,99]", b'{"version":7}'):
        session.receive_data(data)
    assert len(offences) == 3


REST = [
    "/streams",
    "/streams/s/permissions",
    "/streams/s/fields",
    "/login/response",
    "/login/apikey",
    "/streams/s/data",
]


@pytest.mark.parametrize("path", REST)
def test_mutated_requests_cause_no_internal_error(broker: Any, make_caller: Any, path: str) -> None:
    call = make_caller(broker)
    call("POST", "/streams", json={"id": "s"})
    shapes = [
        {"id": "t", "config": {"fields": [1]}},
        {"challenge": {"id": "a", "challenge": "b"}, "signature": "c"},
        [{}],
    ]

    @given(st.sampled_from([*shapes, *ODD]), st.data())
    @settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
    def holds(value: Any, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.sampled_from(list(places(value))))
            odd = data.draw(st.sampled_from(ODD))
            value = put(value, at, always(odd))
        assert call("POST", path, content=json.dumps(value).encode()).status_code < 500

    holds()
