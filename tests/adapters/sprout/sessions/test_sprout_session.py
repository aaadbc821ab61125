"""A Sprout session answers, accepts, refuses, delays and requests on one connection."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.sprout.sessions.session import MESSAGE_SECONDS, SproutSession
from adapters.sprout.wire import base64url, codec
from tests.adapters.sprout.sessions.node_ids import UNKNOWN, alice_line, id_of, ids, refused

# Subscriptions


def test_a_subscription_to_an_unknown_community_starts_when_it_arrives(place: Any, alice: Any, announce: Any) -> None:
    ear, community = place.connect(), alice.community("later")
    assert ear.send(f"subscribe 0 {id_of(community)}\n") == "status 0 0\n"
    reply = alice.reply(community, "hi")
    announce(place.connect(), alice.identity, community, reply)
    assert ids(ear.read()) == [alice.id, id_of(community), id_of(reply)]


def test_unsubscribing_before_a_community_arrives(place: Any, alice: Any, announce: Any) -> None:
    ear, community = place.connect(), alice.community("later")
    ear.send(f"subscribe 0 {id_of(community)}\nunsubscribe 1 {id_of(community)}\n")
    announce(place.connect(), alice.identity, community)
    assert not ear.session.channels


def test_a_second_subscription_changes_nothing(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    ear = place.connect()
    request = f"subscribe 0 {id_of(lobby)}\n"
    assert ear.send(request * 2) == "status 0 0\n" * 2
    announce(place.connect(), alice.reply(lobby, "hi"))
    assert ear.read().count("announce") == 1
    assert ear.send(f"unsubscribe 1 {id_of(lobby)}\n" * 2) == "status 1 0\n" * 2
    announce(place.connect(), alice.reply(lobby, "hi again"))
    assert ear.read() == ""


# Answers


def test_a_response_holds_as_much_as_is_allowed(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    big = [alice.reply(lobby, str(n) + "x" * 60_000) for n in range(60)]
    line = place.connect()
    for start in range(0, 60, 20):
        announce(line, *big[start : start + 20])
    answer = line.ask(f"leaves_of 1 {id_of(lobby)} 1024\n")
    assert len(answer) <= codec.MAX_BODY + 100
    held = ids(answer)
    assert held == [id_of(node) for node in big[-len(held) :]], "the newest are kept"
    assert 40 < len(held) < 60
    newest_first = ids(line.ask("list 2 2 1024\n"))
    assert newest_first == held[::-1]


def test_requests_wait_while_the_peer_does_not_read(place: Any, lobby: str) -> None:
    line = place.connect()
    request = f"query 1 1\n{id_of(lobby)}\n".encode()
    line.session.receive_data(request * 3_000)
    first = line.session.data_to_send()
    assert sum(map(len, first)) < 200_000, "no more is parsed than there is room for"
    assert not line.session.ask_to_read() or line.session.has_more
    rest = line.read()
    assert b"".join(first).decode().count("response") + rest.count("response") == 3_000


def test_a_deep_thread_works(place: Any, lobby: str, alice: Any, announce: Any) -> None:
    thread = [alice.reply(lobby, "0")]
    for n in range(1, 300):
        thread.append(alice.reply(thread[-1], str(n)))
    line = place.connect()
    assert announce(line, *thread) == "status 77 0\n"
    expected = [id_of(node) for node in thread]
    assert ids(line.ask(f"ancestry 1 {expected[-1]} 9999\n")) == [id_of(lobby), *expected[:-1]]
    assert ids(line.send(f"ancestry 1 {expected[-1]} 2\n")) == expected[-3:-1]
    place.index()
    assert ids(line.ask(f"leaves_of 1 {expected[5]} 9999\n")) == expected[5:]
    assert ids(line.send(f"leaves_of 1 {expected[0]} 10\n")) == expected[-10:]


# Limits and rights


def test_a_peer_beyond_its_rate_is_read_more_slowly(make_place: Callable[..., Any], alice: Any) -> None:
    slow = {"rates": "on", "peer": {"rate": 0.001, "burst": 3}}
    place = make_place(limits=slow)
    line, community = place.connect(), alice.community("lobby")
    nodes = [alice.identity, community, *(alice.reply(community, str(n)) for n in range(6))]
    assert line.ask("\n".join((f"announce 1 {len(nodes)}", *nodes, "version 2 0.0\n"))) == ""
    assert not line.session.ask_to_read()
    place.bus.throttle = None  # seconds pass
    place.bus.tick()
    place.settle()
    assert line.read() == "status 2 0\nstatus 1 0\n"
    assert len(place.gateway.index.history("lobby")) == 6


def test_a_query_counts_as_one_request_for_each_node_that_it_names(place: Any, lobby: str) -> None:
    charged: list[float] = []
    place.bus.charge = lambda _network, requests: charged.append(requests)
    line = place.connect()
    for count in (1, 5, codec.MAX_NODES):
        assert "response" in line.ask(f"query 1 {count}\n" + f"{id_of(lobby)}\n" * count)
    assert charged == [4, codec.MAX_NODES - 1]


def test_a_busy_peer_slows_no_other(make_place: Callable[..., Any]) -> None:
    place = make_place(limits={"channel": {"rate": 1, "burst": 1}})
    many, one = place.connect(), place.connect()
    assert many.send("list 0 1 9\n" * 50) == "response 0 0\n" * 50
    assert one.send("list 1 1 9\n") == "response 1 0\n"


def test_rights_are_asked_at_each_verb(make_place: Callable[..., Any], alice: Any) -> None:
    place = make_place(auth={"grants": {"sprout:anonymous": ["publish:lobby", "subscribe:open"]}})
    line, ear = place.connect(), place.connect()
    lobby, hidden, opened = (alice.community(name) for name in ("lobby", "hidden", "open"))
    reply = alice.reply(lobby, "hi")
    assert line.ask(f"announce 1 3\n{alice.identity}\n{lobby}\n{reply}\n") == "status 1 0\n"
    assert line.ask(f"announce 2 1\n{hidden}\n") == "status 2 1\n", "may not publish there"
    assert line.ask(f"announce 3 1\n{alice.reply(opened, 'hi')}\n").startswith("ancestry"), "it waits"
    assert ear.send(f"subscribe 1 {id_of(lobby)}\n").endswith("status 1 1\n"), "may not listen"
    assert line.send(f"leaves_of 2 {id_of(lobby)} 9\n") == f"response 2 1\n{lobby}\n", "may not read"
    assert line.send(f"query 3 1\n{id_of(reply)}\n") == "response 3 0\n"
    assert line.send(f"ancestry 4 {id_of(reply)} 9\n") == "status 4 4\n"
    assert refused(place)["Forbidden"] == 1


def test_peers_without_rights_make_and_learn_no_identities(make_place: Callable[..., Any], alice: Any) -> None:
    place = make_place(auth={"grants": {"key:ada": ["publish:lobby"]}})
    line = place.connect()
    last = place.gateway.log.next_seq
    assert line.ask(f"announce 1 1\n{alice.identity}\n") == "status 1 1\n"
    assert place.gateway.log.next_seq == last, "nothing is logged for it"
    assert line.send("list 2 0 9\n") == "response 2 0\n"
    place.toy().say("hi")
    place.settle()
    assert line.read() == "", "who speaks here is not its business"


def test_an_unfinished_message_times_out(place: Any) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    line.send("query 1 2\n")
    for _ in range(MESSAGE_SECONDS):
        place.bus.tick()
    assert line.session.closing is None
    line.send(f"{UNKNOWN}\n")
    for _ in range(MESSAGE_SECONDS + 1):
        place.bus.tick()
    assert line.session.closing is not None


def test_trickling_bytes_do_not_reset_the_timeout(place: Any) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    line.send("query 1 2\n")
    for _ in range(MESSAGE_SECONDS):
        line.send("x")
        place.bus.tick()
    assert line.session.closing is None
    line.send("x")
    place.bus.tick()
    assert line.session.closing is not None


@pytest.mark.parametrize("text", ["on 0 0.0\nversi", "sense\nnon"])
def test_complete_messages_reset_the_timeout(place: Any, text: str) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    for _ in range(3):
        for _ in range(MESSAGE_SECONDS):
            place.bus.tick()
        assert line.send(text).startswith("status ")
    assert line.session.closing is None


def test_a_long_announce_may_take_long_in_parts(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sprout.wire.parser.MAX_PART", 1)
    line = place.connect()
    line.send("version 0 0.0\n")
    line.send("announce 1 9\n")
    for _ in range(3):
        for _ in range(MESSAGE_SECONDS):
            place.bus.tick()
        line.send("no node\n")
    assert line.session.closing is None


@pytest.mark.parametrize(
    ("before", "id"), [("", -1), ("announce 5 2\n", 5), ("query 6 1\n", 6), ("list 7 ", 7), ("response 8 1\n", -1)]
)
def test_a_line_without_an_end_is_answered_and_closes(place: Any, before: str, id: int) -> None:
    line = place.connect()
    assert line.send(before + "x" * (codec.MAX_LINE + 1)) == f"status {id} 1\n"
    assert line.session.closing is not None


def test_a_connection_that_has_ended_is_forgotten(place: Any, lobby: str, alice: Any) -> None:
    line = place.connect()
    line.send(f"subscribe 0 {id_of(lobby)}\nannounce 1 1\n{alice.reply(lobby, 'hi')}\n")
    line.close()
    place.settle()
    assert not [
        session for session in place.bus.sessions() if isinstance(session, SproutSession) and session is line.session
    ]
    assert line.session not in place.adapter.parts.audience.sessions


# Any bytes


PIECES = [verb.decode() for verb in codec.VERBS] + [
    "0",
    "1",
    "-1",
    "2",
    "99999999999",
    "0.0",
    "1.0",
    UNKNOWN,
    "\n",
    "\n",
    " ",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_of_a_node_changed_keep_it_off_the_bus(
    place: Any, valid: dict[str, str], data: st.DataObject
) -> None:
    line = place.connect()
    line.ask("\n".join((f"announce 0 {len(valid)}", *valid.values(), "")))
    raw = bytearray(base64url.decode(data.draw(st.sampled_from(sorted(valid.values()))).split(" ")[1].encode()))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    changed = alice_line(bytes(raw))
    if changed in valid.values():
        return  # changed back
    last = place.gateway.log.next_seq
    answer = line.ask(f"announce 1 1\n{changed}\n").splitlines()
    asked = any(question.startswith(("query", "ancestry")) for question in answer)
    assert asked or answer[0] == "status 1 1", "what is asked for decides"
    assert place.gateway.log.next_seq == last
    assert line.send(f"query 2 1\n{id_of(changed)}\n") == "response 2 0\n"
    line.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_survived(place: Any, valid: dict[str, str], data: st.DataObject) -> None:
    nodes = list(valid.values())[:8]
    piece = st.sampled_from([*PIECES, *nodes, *(node[:-3] + "AAA" for node in nodes)])
    text = st.lists(piece, max_size=40).map(lambda pieces: " ".join(pieces).replace(" \n ", "\n").encode())
    line = place.connect()
    for chunk in data.draw(st.lists(st.one_of(st.binary(max_size=200), text), max_size=5)):
        line.session.receive_data(chunk)
        line.read()
    line.close()
    place.settle()


# Statuses


def test_statuses_without_effect_are_passed_over_as_if_each_was_read(
    place: Any, lobby: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among requests, rubbish and nodes whose parents the gateway asks for; cut anywhere, mostly behind a line."""
    random = Random(20261123)
    orphan = alice.reply(alice.reply(lobby, "never sent"), "an orphan")
    statuses = ["status 0 0\n", "status 0 0\nstatus 1 0\n", "status 1 1\n", f"status {10**17} {10**17}\n"]
    others = [
        *("status 0 0 0\n", "status x 0\n", f"status 0 {10**18}\n", "status -1 0\n", "status  0 0\n", "status 0 0\r\n"),
        *("version 2 0.0\n", "query 3 1\n", f"{id_of(lobby)}\n", "nothing\n", "\n", "list 5 1 x\n", "response 0 1\n"),
        f"announce 6 1\n{orphan}\n",
    ]
    passed = 0

    def play(chunks: list[str]) -> tuple[Any, ...]:
        line = place.connect()
        heard = [line.send(chunk) for chunk in chunks]
        session = line.session
        parser, asked = session._parser, session._arrivals._requests._open
        line.close()
        state = parser.in_message, parser._skipping, parser.message_id, sorted(asked)
        return heard, state, session.handshake, session._silent_seconds

    for _ in range(300):
        lines = random.choices([*statuses, *others], [8] * len(statuses) + [1] * len(others), k=8)
        text = "".join(lines)
        ends = [at for at in accumulate(map(len, lines)) if random.random() < 0.8]
        cuts = sorted({0, len(text), *ends, *random.choices(range(len(text)), k=random.randrange(2))})
        chunks = [text[at:end] for at, end in pairwise(cuts)]
        at_once = play(chunks)
        passed += sum(codec.are_statuses(chunk.encode()) for chunk in chunks)
        with monkeypatch.context() as patch:
            patch.setattr(codec, "are_statuses", lambda _data: False)
            assert play(chunks) == at_once, chunks
    assert passed > 300


def test_an_http_request_is_answered_with_400_and_the_reason(place: Any) -> None:
    line = place.connect()
    told = line.send("GET /v1/channels HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, text = told.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert f"Content-Length: {len(text)}" in head
    assert text.startswith("This port speaks Sprout")
    assert line.session.closing is not None
