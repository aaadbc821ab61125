"""The Python client against a real gateway, on asyncio and on trio."""

from __future__ import annotations

import gc
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from gateway.access.authorization import KeyFile
from gateway.client import (
    BadAddress,
    Conflict,
    Forbidden,
    Interrupted,
    JsonText,
    Message,
    NotAGateway,
    NotFound,
    Receipt,
    Refused,
    Throttled,
    TrellisClient,
    Unauthorized,
    Unavailable,
    Unreachable,
    Untrusted,
    Welcome,
)
from gateway.commands.certificates import dev_cert
from tests.ports import reserved_port
from tests.server import Server

pytestmark = pytest.mark.anyio
SECONDS = 30.0


@pytest.fixture
async def trellis(server: Server) -> AsyncIterator[TrellisClient]:
    async with TrellisClient(server.http) as client:
        yield client


@pytest.fixture
def channel() -> str:
    return f"a/channel .. % {uuid4().hex}"


async def contents(trellis: TrellisClient, channel: str) -> list[Any]:
    return [message.content async for message in trellis.history(channel)]


# Publishing


async def test_a_message_is_published_and_found_again(trellis: TrellisClient, channel: str) -> None:
    receipt = await trellis.publish(channel, {"content": "héllo \ud800"})
    assert (receipt.channel, receipt.undelivered) == (channel, ())
    answer = await trellis.publish(channel, {"content": "yes", "inReplyTo": receipt.id})
    first, second = [message async for message in trellis.history(channel)]
    assert (first.id, first.sequence, first.content) == (receipt.id, receipt.sequence, {"content": "héllo \ud800"})
    assert (first.sender.protocol, first.direct, first.in_reply_to) == ("rest", False, None)
    assert second.in_reply_to == receipt.id
    assert await trellis.message(channel, answer.id) == second


async def test_json_text_is_sent_as_it_is(trellis: TrellisClient, channel: str) -> None:
    await trellis.publish(channel, JsonText(b'{"price":\n 1.10}'))
    async with trellis.subscribe(channel, after=0) as events:
        await anext(events)
        message = await anext(events)
    assert isinstance(message, Message)
    assert '"content":{"price":  1.10}' in str(message.json).replace("\\n", "")
    with pytest.raises(ValueError, match="JSON"):
        await trellis.publish(channel, float("nan"))


async def test_a_lost_answer_publishes_nothing_twice(
    server: Server, channel: str, proxied: Callable[[str], Any]
) -> None:
    async with proxied(server.http) as proxy, TrellisClient(proxy.address) as trellis:
        proxy.answers_to_lose = 2
        receipt = await trellis.publish(channel, "once")
        assert proxy.answers_to_lose == 0
        assert [m.sequence async for m in trellis.history(channel)] == [receipt.sequence]
    async with proxied(server.http) as proxy, TrellisClient(proxy.address, retry_seconds=0) as trellis:
        proxy.answers_to_lose = 1
        with pytest.raises(Unreachable) as lost:
            await trellis.publish(channel, "twice")
        assert lost.value.sent


async def test_an_idempotency_key_covers_a_later_run(trellis: TrellisClient, channel: str) -> None:
    first, again = [await trellis.publish(channel, 1, idempotency_key="k") for _ in range(2)]
    assert first == again
    with pytest.raises(Conflict, match="k"):
        await trellis.publish(channel, 2, idempotency_key="k")


async def test_many_messages_have_results_in_order(trellis: TrellisClient, channel: str) -> None:
    bad = {0: JsonText(b"{"), 200: JsonText(b"no json")}
    some = [bad.get(n, {"n": n}) for n in range(300)]
    results = [result async for result in trellis.publish_many(channel, some)]
    assert [result.line for result in results if isinstance(result, Refused)] == [1, 201]
    assert [n for n, result in enumerate(results) if isinstance(result, Refused)] == [0, 200]
    sequences = [result.sequence for result in results if isinstance(result, Receipt)]
    assert sequences == sorted(set(sequences))
    assert await contents(trellis, channel) == [{"n": n} for n in range(300) if n not in bad]


async def test_many_messages_come_from_an_async_source_and_survive_lost_answers(
    server: Server, channel: str, proxied: Callable[[str], Any]
) -> None:
    async def source() -> AsyncIterator[str]:
        for n in range(6):
            if n == 3:
                proxy.answers_to_lose = 1
            yield str(n) * 300_000

    async with proxied(server.http) as proxy, TrellisClient(proxy.address) as trellis:
        results = [result async for result in trellis.publish_many(channel, source())]
        assert proxy.answers_to_lose == 0
        assert all(isinstance(result, Receipt) for result in results)
        assert [content[0] for content in await contents(trellis, channel)] == list("012345")


async def test_the_same_batch_twice_is_published_once(trellis: TrellisClient, channel: str) -> None:
    runs = [[r async for r in trellis.publish_many(channel, range(10), idempotency_key="k")] for _ in range(2)]
    assert runs[0] == runs[1]
    assert await contents(trellis, channel) == list(range(10))


async def test_a_direct_message_reaches_one_peer_and_is_never_repeated(
    server: Server, trellis: TrellisClient, channel: str, proxied: Callable[[str], Any]
) -> None:
    async with trellis.subscribe(channel) as events:
        welcome = await anext(events)
        assert isinstance(welcome, Welcome)
        assert (await trellis.direct(channel, welcome.peer.number, "psst")).delivered == 1
        async with proxied(server.http) as proxy, TrellisClient(proxy.address) as other:
            proxy.answers_to_lose = 1
            with pytest.raises(Unreachable) as lost:
                await other.direct(channel, welcome.peer.number, "lost")
            assert lost.value.sent
        await trellis.publish(channel, "end")
        heard = [await anext(events) for _ in range(3)]
    assert [(m.content, m.direct) for m in heard if isinstance(m, Message)] == [
        ("psst", True),
        ("lost", True),
        ("end", False),
    ]
    with anyio.fail_after(SECONDS):
        while await trellis.peers(channel):
            await anyio.sleep(0.01)
    with pytest.raises(NotFound, match="is not in"):
        await trellis.direct(channel, welcome.peer.number, "too late")


# Asking


async def test_history_comes_in_pages(trellis: TrellisClient, channel: str) -> None:
    receipts = [await trellis.publish(channel, n) for n in range(7)]
    assert [m.content async for m in trellis.history(channel, page=3)] == list(range(7))
    assert [m.content async for m in trellis.history(channel, page=3, order="desc")] == list(range(6, -1, -1))
    between = trellis.history(channel, after=receipts[1].sequence, before=receipts[5].sequence)
    assert [m.content async for m in between] == [2, 3, 4]
    published = datetime.now(UTC)
    assert [m.content async for m in trellis.history(channel, since="1h", to=published, page=3)] == list(range(7))
    assert [m async for m in trellis.history(channel, from_=published + timedelta(hours=1))] == []
    (sender,) = {m.sender.number async for m in trellis.history(channel)}
    assert [m async for m in trellis.history(channel, sender=sender + 1)] == []


async def test_channels_and_peers(trellis: TrellisClient, channel: str) -> None:
    with pytest.raises(NotFound, match="there is no channel"):
        await trellis.channel(channel)
    assert (await trellis.create(channel)).sequence == 0
    async with trellis.subscribe(channel) as one, trellis.subscribe(channel) as other:
        first, second = await anext(one), await anext(other)
        assert isinstance(first, Welcome)
        assert isinstance(second, Welcome)
        assert other.peers == {first.peer.number: first.peer}
        await anext(one)
        assert one.peers.keys() == {second.peer.number}
        assert {peer.number for peer in await trellis.peers(channel)} == {first.peer.number, second.peer.number}
        assert (await trellis.peer(first.peer.number))["channels"] == [channel]
        (shown,) = [each async for each in trellis.channels() if each.name == channel]
        assert shown.members == 2
        await other.aclose()
        await anext(one)
        assert one.peers == {}
    with suppress(Forbidden):  # without keys nobody has the right `admin`
        await trellis.close(channel)
    assert (await trellis.get("/v1/stats"))["uptimeSeconds"] >= 0


# Errors


async def test_an_unreachable_gateway_is_retried_and_reported() -> None:
    async with TrellisClient(f"127.0.0.1:{reserved_port()}", retry_seconds=0.5) as trellis:
        begin = anyio.current_time()
        with pytest.raises(Unreachable, match="no gateway at") as nobody:
            await trellis.publish("lobby", "hello")
        assert not nobody.value.sent
        assert 0.1 < anyio.current_time() - begin < SECONDS
        with pytest.raises(Unreachable):
            async for _ in trellis.subscribe("lobby"):
                pass
    with pytest.raises(BadAddress):
        TrellisClient("http://127.0.0.1:99999")


class Locked(NamedTuple):
    """A gateway with keys, over TLS."""

    url: str
    ca: Path
    file: KeyFile
    keys: dict[str, str]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    dev_cert(folder=folder)
    file = KeyFile(folder / "data" / "keys" / "api-keys.json")
    keys = {"full": file.add("full"), "narrow": file.add("narrow", ["subscribe:lobby"]), "doomed": file.add("doomed")}
    with Server(folder / "data", "--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem") as server:
        yield Locked(f"https://{server.http}", folder / "ca.pem", file, keys)


async def test_keys_and_certificates(locked: Locked, channel: str) -> None:
    url, ca, _, keys = locked
    async with TrellisClient(url, keys["full"], ca_file=ca) as trellis:
        receipt = await trellis.publish(channel, 1)
    async with TrellisClient(url, keys["full"], tls=ssl.create_default_context(cafile=ca)) as trellis:
        assert [m.sequence async for m in trellis.history(channel)] == [receipt.sequence]
    async with TrellisClient(url, keys["full"]) as trellis:
        with pytest.raises(Untrusted, match="not trusted"):
            await trellis.publish(channel, 1)
    async with TrellisClient(url, "no key", ca_file=ca) as trellis:
        with pytest.raises(Unauthorized, match="no such key") as refused:
            await anext(trellis.subscribe("lobby"))
        assert (refused.value.status, refused.value.temporary) == (401, False)
    async with TrellisClient(url, keys["narrow"], ca_file=ca) as trellis:
        with pytest.raises(Forbidden, match="publish:lobby"):
            await trellis.publish("lobby", 1)


async def test_an_answer_of_another_server_raises_not_a_gateway(scripted: Callable[..., Any]) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello"
    async with scripted(page, page) as script, TrellisClient(script.address) as trellis:
        with pytest.raises(NotAGateway, match=r"200: OK; is .*/v1/channels/lobby of a Trellis gateway"):
            await trellis.channel("lobby")
        with anyio.fail_after(SECONDS), pytest.raises(NotAGateway, match="/events of a Trellis gateway"):
            await anext(trellis.subscribe("lobby"))


def answer(status: str, *lines: dict[str, Any], media_type: str = "application/x-ndjson") -> bytes:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


FIRST, SECOND = ({"id": f"{n}", "channel": "lobby", "sequence": n, "timestamp": 0} for n in (1, 2))
SHORT_OF_MEMORY = {"status": 503, "detail": "short of memory", "line": 2}  # after which nothing is answered


async def test_a_batch_that_was_not_answered_to_its_end_is_sent_again(scripted: Callable[..., Any]) -> None:
    unfinished = [answer("200 OK", FIRST, SHORT_OF_MEMORY), answer("200 OK", FIRST)]
    async with (
        scripted(*unfinished, answer("200 OK", FIRST, SECOND)) as script,
        TrellisClient(script.address) as trellis,
    ):
        results = [result async for result in trellis.publish_many("lobby", ["one", "two"])]
    assert [result.sequence for result in results if isinstance(result, Receipt)] == [1, 2]
    assert len(script.requests) == 3
    assert len(set(script.requests)) == 1, "with the same key"
    async with (
        scripted(*unfinished, *unfinished) as script,
        TrellisClient(script.address, retry_seconds=0) as trellis,
    ):
        _, refused = [result async for result in trellis.publish_many("lobby", ["one", "two"])]
        assert isinstance(refused, Unavailable)
        with pytest.raises(Unavailable, match="the gateway answered 1 of 2 messages"):
            await anext(trellis.publish_many("lobby", ["one", "two"]))


async def test_the_client_waits_as_long_as_retry_after_asks(scripted: Callable[..., Any]) -> None:
    problem = answer("429 Too Many Requests", {"detail": "later"}, media_type="application/problem+json")
    later = problem.replace(b"\r\n", b"\r\nRetry-After: 1\r\n", 1)
    async with scripted(later, answer("201 Created", FIRST)) as script, TrellisClient(script.address) as trellis:
        begin = anyio.current_time()
        assert (await trellis.publish("lobby", 1)).sequence == 1
        assert anyio.current_time() - begin >= 1
    async with scripted(later) as script, TrellisClient(script.address, retry_seconds=0.9) as trellis:
        with pytest.raises(Throttled, match="429: later") as refused:
            await trellis.publish("lobby", 1)
        assert refused.value.retry_after == 1


async def test_many_messages_may_be_left_halfway(trellis: TrellisClient, channel: str) -> None:
    async for _ in trellis.publish_many(channel, (n for n in range(1_000))):
        break
    gc.collect()  # on trio, a generator that is left behind is a warning


async def test_a_connection_that_breaks_while_sending_is_lost_and_leaves_nothing_behind() -> None:
    async def hang_up(stream: ByteStream) -> None:
        await stream.receive(1_000)
        await anyio.aclose_forcefully(stream)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        address = "{}:{}".format(*listener.extra(SocketAttribute.local_address))
        async with TrellisClient(address, retry_seconds=0) as trellis:
            with pytest.raises(Unreachable, match="the connection was lost"):
                await trellis.publish("lobby", "x" * 10_000_000)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"], scope="module")
async def test_a_key_that_is_removed_ends_its_subscription(locked: Locked) -> None:
    async with (
        TrellisClient(locked.url, locked.keys["doomed"], ca_file=locked.ca) as trellis,
        trellis.subscribe("lobby") as events,
    ):
        assert isinstance(await anext(events), Welcome)
        locked.file.remove("doomed")
        with anyio.fail_after(SECONDS):
            assert isinstance(await anext(events), Interrupted)
            with pytest.raises(Unauthorized):
                await anext(events)
