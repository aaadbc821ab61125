"""The data API enforces rights, rates and slots, also during long answers."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import anyio
import httpx
import pytest

from adapters.streamr.rest import data_routes
from gateway.access.authorization import ApiKey, digest
from gateway.access.throttle import Throttle
from gateway.core import answer_scheduler
from gateway.http import paced
from gateway.settings.limits import Limits, Rate
from tests.adapters.streamr.rest.conftest import LAST, Caller, stored

# Rights


def test_rights_decide_who_publishes_and_who_reads(make_broker: Any, make_caller: Any, alice: Any, bob: Any) -> None:
    broker = make_broker(
        grants={f"streamr:{alice.address}": ("publish:s",), f"streamr:{bob.address}": ("history:s",)},
        keys=(ApiKey("machine", digest("trellis_machine")),),
    )
    call = make_caller(broker)
    writer, reader = broker.token(alice), broker.token(bob)
    denied = {"error": "Authentication failed."}
    assert call("POST", "/streams/s/data", writer, content="1").status_code == 200
    assert call("POST", "/streams/s/data", "trellis_machine", content="2").status_code == 200
    derived = "0x" + sha256(b"machine").hexdigest()
    path = f"/streams/s/data?address={derived}"
    assert call("POST", path, writer, content="3").status_code == 400
    assert call("POST", path, "trellis_machine", content="3").status_code == 200
    assert [m.sender.identity for m in broker.core.index.history("s")][1:] == ["machine"] * 2
    assert call("POST", "/streams/s/data", reader, content="3").json() == denied
    assert call("POST", "/streams/s/data", content="3").status_code == 403
    for path in (LAST, "/streams/s/metadata/partitions/0", "/streams/s/storage/partitions/0"):
        assert call("GET", path, reader).status_code == 200
        assert call("GET", path, writer).json() == denied
        assert call("GET", path).status_code == 403
        lost = call("GET", path, "a token of yesterday")
        assert (lost.status_code, lost.json()) == (401, denied), "so that clients log in again"


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "Bearer ", "abc"])
def test_a_header_without_a_token_is_malformed(call: Caller, header: str) -> None:
    refused = call("GET", LAST, headers={"Authorization": header})
    assert refused.status_code == 400
    assert refused.json() == {"error": data_routes.MALFORMED_HEADER}


def test_requests_over_the_rate_answer_429(broker: Any, make_caller: Any) -> None:
    broker.bus.throttle = Throttle(Limits(channel=Rate(rate=0.5, burst=1)), lambda: 0.0)
    call = make_caller(broker)
    assert call("GET", LAST).status_code == 200
    refused = call("GET", LAST)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert "error" in refused.json()


# Long answers


def test_a_long_answer_comes_in_pieces(call: Caller, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "LOW_WATER", 2_000)
    for number in range(300):
        broker.say("s", number)
    broker.core.settle()
    assert [found["content"] for found in stored(call)] == list(range(300))
    assert call("GET", "/streams/s/metadata/partitions/0").json()["totalMessages"] == 300


def test_an_answer_to_a_stalled_reader_is_abandoned_after_a_timeout(
    call: Caller, broker: Any, portal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced, "STALLED_SECONDS", 0.05)
    broker.say("s", "x" * 100_000)
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)
        if len(sent) > 1:
            await anyio.sleep_forever()

    portal.call(call.run, LAST, send)  # type: ignore[attr-defined]
    assert [event["type"] for event in sent] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize(
    ("path", "status"), [(LAST + "?count=9", 200), ("/streams", 200), ("/streams/s/metadata/partitions/0", 401)]
)
def test_removing_a_key_truncates_or_refuses_its_answers(
    make_broker: Any, make_caller: Any, portal: Any, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    monkeypatch.setattr(paced, "LOW_WATER", 1)
    broker, sent = make_broker(keys=(ApiKey("machine", digest("trellis_machine")),)), list[Any]()
    for stream in ["s"] * 9 + [f"{number}" for number in range(200)]:
        broker.say(stream, "x" * 20_000)
    broker.core.settle()
    authenticate = broker.adapter.parts.trust.authenticate

    def ask(*given: Any) -> Any:
        asked.append(1)
        if len(asked) == 5:  # it was let in, and has a slice or two
            broker.access.set_keys([])
        return authenticate(*given)

    async def send(event: Any) -> None:
        sent.append(event)

    asked = list[int]()
    monkeypatch.setattr(broker.adapter.parts.trust, "authenticate", ask)
    run = make_caller(broker).run
    portal.call(run, path, send, "trellis_machine")
    assert sent[0]["status"] == status
    assert status == 401 or sent[-1]["more_body"], "half an answer must not look whole"


def test_head_reads_nothing(call: Caller, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.say("s", 1)
    monkeypatch.setattr(broker.adapter.parts.forms, "stream_message", None)
    answer = call("HEAD", "/streams/s/data/partitions/0/last")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("application/json")
    assert call("HEAD", "/streams/s/data/partitions/0/last?count=x").status_code == 400


def test_long_answers_without_a_free_slot_answer_429(
    call: Caller, broker: Any, portal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS_PER_NETWORK", 1)
    monkeypatch.setattr(answer_scheduler, "MAX_WAITING_PER_NETWORK", 0)
    broker.say("s", "x" * 100_000)
    entered: list[httpx.Response] = []

    async def send(event: Any) -> None:
        if event["type"] == "http.response.body" and not entered:
            entered.append(await call.inside("GET", "/api/v1" + LAST))  # type: ignore[attr-defined]

    portal.call(call.run, LAST, send)  # type: ignore[attr-defined]
    assert [(refused.status_code, refused.headers["retry-after"]) for refused in entered] == [(429, "10")]
    assert len(stored(call)) == 1, "there is room again"
    assert call("GET", f"{LAST}?format=zzz").status_code == 400
    assert call("GET", "/streams/s/metadata/partitions/0").json()["totalMessages"] == 1


def test_an_unreadable_index_answers_503(call: Caller, broker: Any, monkeypatch: Any) -> None:
    from gateway.core.errors import Unavailable

    def broken(*_arguments: Any) -> Any:
        raise Unavailable("the index cannot be read")

    monkeypatch.setattr(broker.core.index, "rows", broken)
    refused = call("GET", LAST)
    assert refused.status_code == 503
    assert refused.json() == {"error": "the index cannot be read"}
