"""`/v1/ws` answers requests, resumes subscriptions, and withstands attackers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.access.authorization import ApiKey, KeyFile, digest
from gateway.core.channels import CREATION_COST
from gateway.core.notices import FEW
from gateway.http.replay import GRACE_MS
from gateway.http.websocket.reads import MAX_SLICES
from gateway.http.websocket.session import WebSocketSession
from tests.server import Server

WAIT = 20.0


class Page:
    """A client, as a page would be."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.welcome = self.next()
        self.heard: list[Any] = []

    def next(self) -> Any:
        return json.loads(self.socket.recv(WAIT))

    def ask(self, kind: str, **fields: Any) -> Any:
        """Send a request, and return its answer; what comes before it is kept."""
        self.socket.send(json.dumps({"type": kind, "request": kind, **fields}))
        while (answer := self.next()).get("request") != kind:
            self.heard.append(answer)
        return answer

    def until(self, kind: str) -> Any:
        """The next message of a *kind*; those before it are kept."""
        while (found := next((each for each in self.heard if each["type"] == kind), None)) is None:
            self.heard.append(self.next())
        self.heard.remove(found)
        return found


def opened(server: Server, key: str | None = None, **options: Any) -> ClientConnection:
    query = "" if key is None else f"?key={key}"
    socket: ClientConnection = connect(f"ws://{server.http}/v1/ws{query}", compression=None, max_size=None, **options)
    return socket


def close_code(socket: ClientConnection) -> int | None:
    """The code with which the gateway closes the connection, after everything before it."""
    try:
        while True:
            socket.recv(WAIT)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ws"), "--loop", request.param) as server:
        yield server


def test_two_pages_exchange_messages_and_presence(server: Server) -> None:
    with opened(server) as one, opened(server) as two:
        a, b = Page(one), Page(two)
        assert a.welcome["type"] == "welcome"
        assert a.ask("subscribe", channel="talk")["type"] == "subscribed"
        assert b.ask("subscribe", channel="talk")["channel"] == "talk"
        assert a.until("joined")["number"] == b.welcome["number"]
        assert [peer["number"] for peer in b.ask("presence", channel="talk")["peers"]] == [
            a.welcome["number"],
            b.welcome["number"],
        ]
        a.socket.send('{"type":"publish","request":7,"channel":"talk","content":{"n": 1e400}}')
        answers = {each["type"]: each for each in (a.next(), a.next())}
        assert answers["published"]["request"] == 7
        assert answers["message"]["id"] == answers["published"]["id"], "who publishes hears itself"
        assert '"content":{"n": 1e400}' in two.recv(WAIT)
        assert b.ask("direct", channel="talk", peer=a.welcome["number"], content="psst")["delivered"] == 1
        assert a.until("direct")["content"] == "psst"
        page = b.ask("history", channel="talk")
        assert [each["id"] for each in page["messages"]] == [answers["published"]["id"]]
        assert b.ask("ping")["type"] == "pong"
        assert b.ask("unsubscribe", channel="talk")["type"] == "unsubscribed"
        assert a.until("left")["number"] == b.welcome["number"]


def test_joins_are_announced_before_a_list_of_peers(server: Server) -> None:
    """Else a page would be told of peers that it has just been given, since a crowd is told later."""
    with ExitStack() as open_sockets:
        # With its usual queue, a client that was told of more than 16 joins would not read the answer to its close.
        sockets = (open_sockets.enter_context(opened(server, max_queue=None)) for _ in range(FEW + 3))
        first, *others, last = map(Page, sockets)
        for page in first, *others, last:
            page.ask("subscribe", channel="crowd")
        peers = first.ask("presence", channel="crowd")["peers"]
        assert {"type": "joined", "channel": "crowd", **peers[-1]} in first.heard
        assert peers[-1]["number"] == last.welcome["number"]


def test_sessions_resume_by_sequence_and_patterns_follow_new_channels(server: Server) -> None:
    with opened(server) as one, opened(server) as two:
        a, b = Page(one), Page(two)
        start = a.ask("subscribe", pattern="r/*")["sequence"]
        said = [b.ask("publish", channel=f"r/{n % 3}", content=n)["sequence"] for n in range(40)]
        assert [a.until("message")["sequence"] for _ in said] == said
    with opened(server) as again:
        a = Page(again)
        a.ask("subscribe", pattern="r/*", after=said[4])
        a.ask("subscribe", channel="r/0", after=start)
        heard = [message for _ in range(49) for message in (a.until("message"),)]
        assert [each["sequence"] for each in heard if "pattern" in each] == said[5:]
        assert [each["sequence"] for each in heard if "pattern" not in each] == said[::3]


def test_sessions_resume_after_the_gateway_was_killed(tmp_path: Path) -> None:
    """With a plain client: what was acknowledged before and after comes once, in order, by channel and by pattern."""
    first = Server(tmp_path)
    with opened(first) as one, opened(first) as two:
        listener, speaker = Page(one), Page(two)
        begin = listener.ask("subscribe", channel="r/0")["sequence"]
        said = [speaker.ask("publish", channel=f"r/{n % 2}", content=n)["sequence"] for n in range(20)]
        heard = [listener.until("message")["sequence"] for _ in range(4)]
        first.kill()
    with Server(tmp_path) as second, opened(second) as one, opened(second) as two:
        listener, speaker = Page(one), Page(two)
        assert listener.ask("subscribe", channel="r/0", after=heard[-1])["sequence"] == heard[-1]
        assert listener.ask("subscribe", pattern="r/*", after=begin)["sequence"] == begin
        said += [speaker.ask("publish", channel=f"r/{n % 2}", content=n)["sequence"] for n in range(20, 30)]
        rest = [listener.until("message") for _ in range(11 + 30)]
        assert [*heard, *(each["sequence"] for each in rest if "pattern" not in each)] == said[::2]
        assert [each["sequence"] for each in rest if "pattern" in each] == said
        assert [each["content"] for each in rest if "pattern" in each] == [*range(30)]
        assert listener.ask("ping")["type"] == "pong", "and nothing more"


def test_an_idempotency_key_publishes_once(server: Server) -> None:
    with opened(server) as one, opened(server) as two:
        first = Page(one).ask("publish", channel="once", content=1, idempotencyKey="k")
        page = Page(two)
        assert page.ask("publish", channel="once", content=1, idempotencyKey="k")["id"] == first["id"]
        assert page.ask("publish", channel="once", content=2, idempotencyKey="k")["problem"]["status"] == 422


@pytest.mark.parametrize(
    ("text", "status", "request_id"),
    [
        ("", 400, None),
        ("[]", 400, None),
        ('{"type":"fly","request":1}', 400, 1),
        ('{"type":"publish","request":"x","channel":"a"}', 400, "x"),
        ('{"type":"publish","request":1,"channel":"a","content":1,"idempotency_key":"k"}', 400, 1),
        ('{"type":"publish","request":1,"channel":"a/@b","content":1}', 404, 1),
        ('{"type":"publish","request":1,"channel":"a","content":' + "[" * 300 + "]" * 300 + "}", 400, 1),
        ('{"type":"subscribe","request":1}', 422, 1),
        ('{"type":"subscribe","request":1,"pattern":"*x"}', 422, 1),
        ('{"type":"subscribe","request":1,"channel":"a","after":-1}', 400, 1),
        ('{"type":"history","request":1,"channel":"a","limit":100000}', 400, 1),
        ("[" * 500_000, 400, None),
    ],
)
def test_a_malformed_request_gets_a_problem(server: Server, text: str, status: int, request_id: Any) -> None:
    with opened(server) as socket:
        page = Page(socket)
        socket.send(text)
        answer = page.next()
        assert (answer["type"], answer["request"], answer["problem"]["status"]) == ("error", request_id, status)
        assert page.ask("ping")["type"] == "pong"


@pytest.mark.parametrize(
    "content", [r'"\ud83c"', r'{"a": ["\uDF33", "\ud83c\udf33", "\\ud83c"]}', r'"\udf33\ud83c \u00e9\uE000 é"']
)
def test_a_lone_surrogate_is_kept_as_with_post(server: Server, content: str) -> None:
    with opened(server) as socket:
        page = Page(socket)
        page.ask("subscribe", channel="half")
        socket.send('{"type":"publish","request":1,"channel":"half","content":' + content + "}")
        told = [str(socket.recv(WAIT)) for _ in range(2)]
        assert sum(f'"content":{content},' in each for each in told) == 1
        assert sum('"published"' in each for each in told) == 1
        escapes = "".join(rf"\u{digit}000" for digit in "0123456789abcefABCEF")
        for refused in (
            rf'"channel":"half\ud83c","content":{content}',
            rf'"channel":"half\ud83c\udf33","content":{content}',
            rf'"channel":"half","content":"\ud83c{escapes}"',
        ):
            socket.send('{"type":"publish","request":1,' + refused + "}")
            assert page.next()["problem"]["status"] == 400


def test_a_message_that_is_too_long_ends_its_connection_and_no_other(server: Server) -> None:
    with opened(server) as socket, opened(server) as other:
        page = Page(other)
        Page(socket)
        with suppress(ConnectionClosed):
            socket.send("x" * ((1 << 20) + 1))
        assert close_code(socket) == 1009
        assert page.ask("ping")["type"] == "pong"


def test_only_a_slow_reader_is_closed(tmp_path: Path) -> None:
    patient = {"gateway.shells.connection.LINGER_SECONDS": 60.0}  # for the reason, until it reads again
    with (
        Server(tmp_path, constants=patient) as server,
        opened(server, max_queue=1) as slow,
        opened(server) as other,
    ):
        Page(slow).ask("subscribe", channel="big")
        page = Page(other)
        for _ in range(40):
            assert page.ask("publish", channel="big", content="x" * 500_000)["type"] == "published"
        assert close_code(slow) == 1013
        assert page.ask("ping")["type"] == "pong"


def test_a_page_of_history_costs_as_many_requests_as_with_rest(tmp_path: Path) -> None:
    burst = CREATION_COST + 20
    limits = {"TRELLIS_LIMITS__RATES": "on", "TRELLIS_LIMITS__ADDRESS": f'{{"rate": 0.001, "burst": {burst}}}'}
    with Server(tmp_path, env=limits) as server, opened(server) as socket:
        page = Page(socket)
        assert page.ask("publish", channel="lobby", content=1)["type"] == "published"
        answers = [page.ask("history", channel="lobby", limit=32) for _ in range(20)]
    assert 8 <= [answer["type"] for answer in answers].count("history") <= 10
    assert answers[-1]["problem"]["status"] == 429


def requests(count: int, kind: str, **fields: Any) -> list[bytes]:
    return [json.dumps({"type": kind, "request": n, **fields}).encode() for n in range(count)]


def told(frames: list[bytes]) -> list[Any]:
    """What *frames* of the gateway say."""
    return [json.loads(frame[frame.index(b"{") :]) for frame in frames]


def test_a_flood_of_history_is_read_a_page_in_each_turn(still: Any, monkeypatch: Any) -> None:
    here, reads = still, list[str]()
    for _ in range(3):
        here.say()
    here.sync()
    read = here.gateway.index.history

    def counted(channel: str, **how: Any) -> Any:
        reads.append(channel)
        return read(channel, **how)

    monkeypatch.setattr(here.gateway.index, "history", counted)
    session = WebSocketSession(here.gateway, here.caller().principal)
    assert [each["type"] for each in told(session.data_to_send())] == ["welcome"]
    session.receive_all(requests(40, "history", channel="lobby"))
    assert not reads, "nothing is read where a request is handled"
    assert len(session._backlog) == 40 - MAX_SLICES
    here.drain()
    assert len(reads) == 1, "who does not read gets no further turn"
    answers = list[Any]()
    while len(answers) < 40:
        before = len(reads)
        answers += told(session.data_to_send())
        assert len(reads) == before, "nothing is read where answers are written"
        while not here.posted.empty():
            here.posted.get()()
        assert len(reads) <= before + 1
    assert [answer["request"] for answer in answers] == [*range(40)]
    assert all(len(answer["messages"]) == 3 for answer in answers)


def test_missed_messages_are_read_in_turns_between_answers(still: Any) -> None:
    here = still
    for _ in range(70):
        here.say()
    here.sync()
    session = WebSocketSession(here.gateway, here.caller().principal)
    session.receive_all(requests(1, "subscribe", pattern="*", after=0) + requests(2, "history", channel="lobby"))
    assert [each["type"] for each in told(session.data_to_send())] == ["subscribed", "welcome"]
    kinds = list[list[str]]()
    while here.posted.qsize():
        here.posted.get()()
        kinds.append([each["type"] for each in told(session.data_to_send())])
    assert [kind for kind in kinds if kind] == [
        ["message"] * 32,
        ["history"],
        ["message"] * 32,
        ["history"],
        ["message"] * 6,
    ]


def test_patterns_that_match_nothing_take_a_turn_each(still: Any, monkeypatch: Any) -> None:
    here, scans = still, list[int]()
    here.say()
    here.sync()
    scan = here.gateway.index.scan

    def counted(*asked: Any, **how: Any) -> Any:
        scans.append(1)
        return scan(*asked, **how)

    monkeypatch.setattr(here.gateway.index, "scan", counted)
    session = WebSocketSession(here.gateway, here.caller().principal)
    asked = [json.dumps({"type": "subscribe", "pattern": f"none{n}*", "after": 0}).encode() for n in range(20)]
    session.receive_all(asked)
    session.data_to_send()
    while len(scans) < 20:
        before = len(scans)
        here.posted.get()()
        assert len(scans) <= before + 1, "one look into the log in each turn"
        session.data_to_send()


def test_rights_hold_on_live_connections_and_keys_stay_out_of_the_log(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys/api-keys.json")
    ada = keys.add("ada", ("subscribe:a", "publish:*", "subscribe:news/*"))
    with Server(tmp_path) as server:
        with pytest.raises(InvalidStatus) as refused:
            opened(server, "wrong-secret")
        assert refused.value.response.status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            opened(server, ada, origin="https://evil.example")
        assert refused.value.response.status_code == 403
        with opened(server) as stranger:
            page = Page(stranger)
            for asked in ({"channel": "a"}, {"pattern": "*"}):
                assert page.ask("subscribe", **asked)["problem"]["status"] == 403
        with opened(server, ada) as socket:
            page = Page(socket)
            assert page.welcome["identity"] == "ada"
            assert page.ask("subscribe", channel="b")["problem"]["code"] == "forbidden"
            assert page.ask("history", channel="a")["problem"]["code"] == "forbidden"
            assert page.ask("subscribe", pattern="*")["type"] == "subscribed"
            page.ask("publish", channel="secret", content=1)
            page.ask("publish", channel="news/x", content=2)
            assert page.until("message")["channel"] == "news/x"
            keys.remove("ada")
            assert close_code(socket) == 1008
        assert ada not in server.log
        assert "wrong-secret" not in server.log


def test_old_messages_need_the_right_to_read_history(still: Any) -> None:
    gateway = still.gateway
    said = [still.say(channel=name) for name in ("lobby", "open")]
    still.sync()
    gateway.access.set_keys([ApiKey("ada", digest("s"), rights=("subscribe:*", "history:open"))])
    principal = gateway.access.authenticate("rest", "s", "")
    clock = gateway.bus.clock

    def answer(channel: str, after: int) -> str:
        session = WebSocketSession(gateway, principal)
        session.receive_all(requests(1, "subscribe", channel=channel, after=after))
        found = next(each for each in told(session.data_to_send()) if each["type"] != "welcome")
        session.receive_eof()
        return str(found["problem"]["detail"] if found["type"] == "error" else found["type"])

    assert answer("lobby", 0) == "subscribed"
    gateway.bus.clock = lambda: clock() + GRACE_MS + 60_000
    assert "`history:lobby`" in answer("lobby", 0)
    assert answer("lobby", said[0].seq) == answer("open", 0) == "subscribed"
