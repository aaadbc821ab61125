"""`trellis sync` exchanges missing messages between two real gateways, with their ids and signatures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from gateway.access.authorization import KeyFile
from gateway.cli import app
from gateway.commands.sync import _Transfer
from gateway.reconciliation.reading import digest_of
from tests.adapters.streamr.conftest import Publisher
from tests.server import Server
from tests.waiting import until

Pair = tuple[Server, Server]
NUMBERS = count(1_000)  # of ids that somebody else gave


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Server(tmp_path_factory.mktemp("one") / "data") as one, Server(tmp_path_factory.mktemp("two") / "data") as two:
        yield one, two


@pytest.fixture
def sync(gateways: Pair) -> Callable[..., Any]:
    """Runs the command from the first gateway to the second; its report."""
    one, two = gateways

    def sync(*arguments: str, code: int = 0) -> Any:
        command = ["sync", two.http, *arguments, "--json", "--gateway", one.http]
        done = CliRunner().invoke(app, command, env={"TRELLIS_KEY": None})
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    return sync


def publish(server: Server, channel: str, content: Any, **headers: str) -> str:
    url = f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages"
    return str(httpx.post(url, json=content, headers=headers).raise_for_status().json()["id"])


def history(server: Server, channel: str, order: str = "since=1d") -> list[dict[str, Any]]:
    found = httpx.get(f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages?{order}")
    return list(found.raise_for_status().json()["messages"])


def told(server: Server, channel: str) -> list[tuple[str, int, Any]]:
    return [(m["id"], m["timestamp"], m["content"]) for m in history(server, channel)]


def has(server: Server, channel: str, count: int) -> bool:
    return len(history(server, channel)) == count


def test_each_gateway_gets_missing_messages_under_their_ids(gateways: Pair, sync: Callable[..., Any]) -> None:
    one, two = gateways
    for n in range(3):
        publish(one, "sync/a", {"one": n}, **{"Idempotency-Key": f"k{n}"})
        publish(two, "sync/a", {"two": n})
    parent = publish(one, "sync/b", "a question")
    publish(one, "sync/b", {"inReplyTo": parent, "text": "an answer"})
    publish(two, "other", "is not exchanged")
    counted = sync("--channels", "sync/*", "--dry-run")
    assert (counted["here"], counted["there"], counted["pushed"], counted["pulled"]) == (5, 3, 0, 0)
    done = sync("--channels", "sync/*")
    assert (done["pushed"], done["pulled"], done["known"], done["refused"]) == (5, 3, 0, [])
    assert told(one, "sync/a") == told(two, "sync/a")
    assert len(told(one, "sync/a")) == 6
    assert [m["inReplyTo"] for m in history(two, "sync/b")] == [None, parent]
    again = sync("--channels", "sync/*")
    assert (again["here"], again["there"], again["rounds"]) == (0, 0, 1)
    assert again["received"] == 1, "equal sets are known by one byte"
    assert sync("--channels", "other,sync/a")["there"] == 1


def test_one_direction_at_a_time(gateways: Pair, sync: Callable[..., Any]) -> None:
    one, two = gateways
    publish(one, "way", "one")
    publish(two, "way", "two")
    assert sync("--channels", "way", "--pull")["pulled"] == 1
    assert [m["content"] for m in history(two, "way")] == ["two"]
    assert sync("--channels", "way", "--push")["pushed"] == 1
    assert told(one, "way") == told(two, "way")


def test_signatures_survive_a_sync(gateways: Pair, sync: Callable[..., Any]) -> None:
    one, two = gateways
    alice, at = Publisher(1), int(time.time() * 1000)
    signed, both = alice.message("signed", {"n": 1}, at), alice.message("signed", {"n": 2}, at + 1)
    for server, messages in ((one, [signed, both]), (two, [both])):
        with connect(f"ws://{server.http}/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32") as client:
            for message in messages:
                client.send(json.dumps([2, 8, "p", message, None]))
        until(partial(has, server, "signed", len(messages)))
    done = sync("--channels", "signed")
    assert (done["here"], done["there"], done["pushed"], done["refused"]) == (1, 0, 1, [])
    url = f"http://{two.http}/api/v1/streams/signed/data/partitions/0/last?count=2&format=protocol"
    assert [json.loads(text)[-1] for text in httpx.get(url).json()] == [signed[-1], both[-1]]
    assert {m["sender"]["identity"] for m in history(two, "signed")} == {alice.address}
    assert sync("--channels", "signed")["here"] == 0


def test_the_since_option_limits_the_compared_messages(gateways: Pair, sync: Callable[..., Any]) -> None:
    publish(gateways[0], "age", "now")
    assert sync("--channels", "age", "--since", "1h", "--dry-run")["here"] == 1
    assert (
        CliRunner().invoke(app, ["sync", "http://127.0.0.1:9", "--channels", "age", "--since", "soon"]).exit_code == 2
    )


def test_refused_messages_are_reported_line_by_line(gateways: Pair) -> None:
    two = gateways[1]
    at = int(time.time() * 1000)
    forged = Publisher(1).message("forged", {"n": 1}, at)
    forged[7] = '{"n": 2}'
    line = {
        "id": "x",
        "channel": "forged",
        "protocol": "streamr",
        "timestamp": at,
        "content": 1,
        "wire": json.dumps(forged),
    }
    own = publish(two, "forged", "own")
    lines = [
        line,
        line | {"channel": "elsewhere"},
        line | {"protocol": "sprout"},
        line | {"protocol": "nonsense"},
        line | {"id": own, "content": "own"},
        line | {"id": own},
        line | {"id": "01900000-0000-7000-8000-000000000001", "timestamp": 1 << 60},
        {"id": 7},
    ]
    body = "\n".join(map(json.dumps, lines)) + "\n["
    found = httpx.post(f"http://{two.http}/v1/sync/import", content=body).raise_for_status()
    results = [json.loads(result) for result in found.text.splitlines()]
    assert [each["status"] for each in results] == [400, 400, 400, 400, "known", "accepted", 422, 400, 400]
    counted = httpx.get(f"http://{two.http}/metrics").text
    assert 'trellis_handed_over_total{result="refused"} 7.0' in counted
    told = {m["id"]: m["content"] for m in history(two, "forged")}
    assert told.pop(own) == "own", "nobody can take its place"
    assert list(told.values()) == [1], "what says something else under a known id is another message"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("?channels=a", b"", 400),
        ("?channels=a", b"\x61\x80", 400),
        ("?channels=*x", b"\x61", 422),
        ("", b"\x61", 422),
        ("/differences?channels=a", b"[", 422),
        ("/differences?channels=a", b'{"message":"?"}', 422),
        ("/differences?channels=a", b'{"message":"YYA="}', 400),
        ("/differences?channels=a", b'{"since":-1}', 422),
        ("/export?channels=a", b'{"ids":["00"]}', 422),
        ("/export?channels=a", b'{"ids":7}', 422),
    ],
)
def test_a_malformed_request_is_refused(gateways: Pair, path: str, body: bytes, status: int) -> None:
    answer = httpx.post(f"http://{gateways[0].http}/v1/sync{path}", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text


def test_rights_limit_compared_and_imported_messages(tmp_path: Any) -> None:
    keys = KeyFile(tmp_path / "data/keys/api-keys.json")
    reader, writer = keys.add("reader", ["history:open/*"]), keys.add("writer", ["publish:*"])
    root = keys.add("root", ["*:*"])
    with Server(tmp_path / "data") as server, httpx.Client(base_url=f"http://{server.http}") as client:

        def ask(key: str, path: str, **options: Any) -> httpx.Response:
            return client.post(f"/v1/sync{path}", headers={"Authorization": f"Bearer {key}"}, **options)

        for channel in ("open/a", "secret"):
            url = f"http://{server.http}/v1/channels/{quote(channel, safe='')}/messages"
            httpx.post(url, json=1, headers={"Authorization": f"Bearer {root}"}).raise_for_status()
        everything = b"\x61\x00\x00\x02\x00"  # the side that begins has nothing
        assert len(ask(root, "?channels=*", content=everything).content) == 5 + 2 * 32
        seen = ask(reader, "?channels=*", content=everything).content
        assert len(seen) == 5 + 32
        secret = ask(root, "?channels=secret", content=everything).content[5:]
        assert ask(reader, "/export?channels=*", json={"ids": [secret.hex()]}).content == b""
        assert ask(reader, "?channels=secret", content=everything).status_code == 403
        assert ask(writer, "?channels=*", content=everything).status_code == 403
        (line,) = ask(root, "/export?channels=secret", json={"ids": [secret.hex()]}).text.splitlines()
        assert json.loads(ask(reader, "/import", content=line).text)["code"] == "forbidden"
        assert json.loads(ask(writer, "/import", content=line).text)["status"] == "known"


def test_a_set_follows_the_log(gateways: Pair, sync: Callable[..., Any]) -> None:
    """What is said after a comparison is in the next one, in channels that are new as well."""
    one = gateways[0]
    for n in range(3):
        publish(one, f"grow/{n}", n)
        publish(one, "grow/0", n)
        assert sync("--channels", "grow/*")["here"] == 2


@contextmanager
def hostile(behind: Server, change: Callable[[bytes], bytes]) -> Iterator[str]:
    """The address of a gateway that answers as the one *behind* it does, but hands over *change* of the lines."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = {"Content-Type": self.headers["Content-Type"]}
            answer = httpx.post(f"http://{behind.http}{self.path}", content=body, headers=kind)
            said = change(answer.content) if "/export" in self.path else answer.content
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_unrequested_messages_of_a_hostile_gateway_are_refused(gateways: Pair) -> None:
    one, two = gateways
    asked = publish(two, "wanted", "asked for")

    def change(lines: bytes) -> bytes:
        (line,) = map(json.loads, lines.splitlines())
        forged = line | {"id": "01900000-0000-7000-8000-00000000000a"}
        others = [
            line | {"channel": "theirs"},  # a digest that was asked for, and its id, elsewhere
            forged | {"content": "another id"},
            forged | {"digest": digest_of(forged["id"]).hex()},  # nobody asked for that
            forged | {"digest": digest_of(forged["id"]).hex(), "channel": "theirs"},
            line,
            line | {"content": "once more"},
        ]
        return b"\n".join(json.dumps(each).encode() for each in others) + b"\n[\n"

    with hostile(two, change) as url:
        command = ["sync", url, "--channels", "wanted,want*", "--pull", "--json", "--gateway", one.http]
        done = CliRunner().invoke(app, command, env={"TRELLIS_KEY": None})
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["pulled"] == 1
    assert len(report["refused"]) == 6
    assert [(m["id"], m["content"]) for m in history(one, "wanted")] == [(asked, "asked for")]
    assert not history(one, "theirs")


def test_the_gateway_that_takes_checks_the_channels_too(gateways: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = gateways
    publish(two, "named", "here")
    monkeypatch.setattr(_Transfer, "_covers", lambda _self, _channel: True)  # a command that passes everything on
    with hostile(two, lambda lines: lines.replace(b'"channel":"named"', b'"channel":"unnamed"')) as url:
        command = ["sync", url, "--channels", "named,nam*", "--pull", "--json", "--gateway", one.http]
        done = CliRunner().invoke(app, command, env={"TRELLIS_KEY": None})
    assert done.exit_code == 1, done.output
    (refused,) = json.loads(done.stdout)["refused"]
    assert refused.endswith("the message is on another channel than those that the request names")
    assert not history(one, "unnamed")


@pytest.mark.parametrize(
    ("query", "taken"),
    [
        ("", ["a", "b", "b/c", "d*"]),
        ("?channels=b", ["b"]),
        ("?channels=a,b/*", ["a", "b/c"]),
        ("?channels=*", ["a", "b", "b/c", "d*"]),
        ("?channel=d*&channels=b*", ["b", "b/c", "d*"]),
    ],
)
def test_messages_on_other_channels_than_those_named_are_refused(gateways: Pair, query: str, taken: list[str]) -> None:
    def line(channel: str) -> str:
        id = f"01900000-0000-7000-8000-{next(NUMBERS):012}"
        return json.dumps({"id": id, "channel": channel, "protocol": "rest", "timestamp": 1, "content": 1})

    channels = ["a", "b", "b/c", "d*"]
    found = httpx.post(f"http://{gateways[0].http}/v1/sync/import{query}", content="\n".join(map(line, channels)))
    results = [json.loads(each)["status"] for each in found.raise_for_status().text.splitlines()]
    assert results == ["accepted" if channel in taken else 400 for channel in channels]


def test_messages_with_a_second_id_are_handed_over(gateways: Pair, sync: Callable[..., Any]) -> None:
    """An id that was taken at the other gateway: the sets have another text than the line, which tells the id alone."""
    two = gateways[1]
    own = publish(two, "second", "own")
    line = {"id": own, "channel": "second", "protocol": "rest", "timestamp": 1, "content": {"n": 1, "inReplyTo": own}}
    found = httpx.post(f"http://{two.http}/v1/sync/import", content=json.dumps(line)).raise_for_status()
    assert json.loads(found.text)["status"] == "accepted"
    assert sync("--channels", "second", "--pull")["pulled"] == 2
    assert sync("--channels", "second")["there"] == 0
